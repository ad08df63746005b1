"""The language stage: what it tells the engine, and how tokens become a reply."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from tests.api.serving import new_metrics
from tests.stages.generating import (
    EOS,
    MAX_CONTEXT_TOKENS,
    PLACEHOLDER,
    Answer,
    ByteTokenizer,
    ScriptedEngine,
    answered,
    chat_request,
    embedding_ref,
    language_stage,
    reference,
)
from tests.stages.preparing import run
from triptych.errors import PromptTooLong, TriptychError, WorkerUnavailable
from triptych.messages import ChatEvent, SamplingParams, StageTiming, TextDelta, TokenLogprobs


def test_the_engine_gets_the_prompt_with_every_item_in_its_place() -> None:
    async def test() -> None:
        engine = ScriptedEngine()
        small, large = embedding_ref(2), embedding_ref(3)
        request = chat_request("ab", reference(small), "c", reference(large, index=1))
        answer = await answered(language_stage(engine).chat(request))
        (asked,) = engine.requests
        assert asked.token_ids == (*b"ab", *[PLACEHOLDER] * 2, *b"c", *[PLACEHOLDER] * 3)
        assert [(item.name, item.ref, item.runs) for item in asked.items] == [
            ("image 1", small, ((2, 2),)),
            ("image 2", large, ((5, 3),)),
        ]
        assert asked.request_id == request.request_id
        assert 0 < asked.deadline_ms <= request.deadline_ms
        assert answer.finished.num_prompt_tokens == len(asked.token_ids)

    run(test)


def test_the_token_that_ends_a_reply_is_counted_but_not_part_of_its_text() -> None:
    async def test() -> None:
        answer = await answered(language_stage(ScriptedEngine()).chat(chat_request("hi")))
        assert answer.text == "Hello"
        assert answer.token_ids == (*b"Hello", EOS)
        assert answer.finished.finish_reason == "stop"
        assert answer.finished.num_output_tokens == 6

    run(test)


def test_a_stop_token_with_text_is_not_part_of_the_text() -> None:
    async def test() -> None:
        answer = await answered(language_stage(ScriptedEngine(b"ok!")).chat(chat_request("hi")))
        assert answer.text == "ok"
        assert answer.token_ids == tuple(b"ok!")

    run(test)


def test_the_last_token_of_a_reply_that_is_cut_off_is_part_of_the_text() -> None:
    async def test() -> None:
        engine = ScriptedEngine(b"abc", finish_reason="length")
        answer = await answered(language_stage(engine).chat(chat_request("hi")))
        assert (answer.text, answer.finished.finish_reason) == ("abc", "length")

    run(test)


def test_a_stop_string_ends_the_reply_and_the_engine_is_cancelled() -> None:
    async def test() -> None:
        engine = ScriptedEngine(b"one, two, three", hangs_after=8)
        request = chat_request("hi", sampling=SamplingParams(stop=("tw", "zz")))
        answer = await answered(language_stage(engine).chat(request))
        assert answer.text == "one, "
        assert answer.finished.finish_reason == "stop"
        assert answer.finished.num_output_tokens == 7
        assert (engine.num_open, engine.num_cancelled) == (0, 1)

    run(test)


def test_text_held_back_for_a_stop_string_comes_with_the_last_token() -> None:
    async def test() -> None:
        engine = ScriptedEngine(b"ab<", finish_reason="length")
        request = chat_request("hi", sampling=SamplingParams(stop=("<end>",)))
        answer = await answered(language_stage(engine).chat(request))
        assert [delta.text for delta in answer.deltas] == ["a", "b", "<"]
        assert engine.num_cancelled == 0

    run(test)


def test_a_character_split_over_tokens_comes_whole() -> None:
    async def test() -> None:
        engine = ScriptedEngine((*"é😀".encode(), EOS))
        answer = await answered(language_stage(engine).chat(chat_request("hi")))
        assert [delta.text for delta in answer.deltas] == ["", "é", "", "", "", "😀", ""]
        assert all(len(delta.token_ids) == 1 for delta in answer.deltas)

    run(test)


def test_a_character_cut_off_by_the_end_is_replaced() -> None:
    async def test() -> None:
        engine = ScriptedEngine("é".encode()[:1], finish_reason="length")
        answer = await answered(language_stage(engine).chat(chat_request("hi")))
        assert answer.text == "\N{REPLACEMENT CHARACTER}"

    run(test)


def test_logprobs_name_tokens_by_text_and_bytes() -> None:
    async def test() -> None:
        logprobs = TokenLogprobs(logprob=-0.5, top=((ord("H"), -0.5), (EOS, -1.5)))
        engine = ScriptedEngine(b"H", finish_reason="length", logprobs=logprobs)
        answer = await answered(language_stage(engine).chat(chat_request("hi")))
        (token,) = answer.deltas[0].logprobs
        assert (token.token, token.token_bytes, token.logprob) == ("H", b"H", -0.5)
        assert token.top == (("H", b"H", -0.5), ("<256>", b"", -1.5))

    run(test)


def test_timings_of_all_stages_come_together_and_into_the_metrics() -> None:
    async def test() -> None:
        spent = (_took("transfer", 4.0), _took("prefill", 2.0), _took("fetch", 1.0))
        metrics = new_metrics()
        stage = language_stage(ScriptedEngine(timings=spent), metrics)
        answer = await answered(stage.chat(chat_request("hi")))
        assert answer.finished.timings == (
            _took("fetch", 1.0),
            _took("transfer", 4.0),
            _took("prefill", 2.0),
        )
        value = metrics.registry.get_sample_value
        assert value("triptych_stage_seconds_sum", {"stage": "transfer"}) == pytest.approx(0.004)

    run(test)


def test_too_long_a_prompt_says_how_much_of_it_is_media() -> None:
    async def test() -> None:
        engine = ScriptedEngine()
        ref = embedding_ref(4)
        request = chat_request("a" * (MAX_CONTEXT_TOKENS - 4), reference(ref))
        with pytest.raises(PromptTooLong, match=r"64 tokens .4 of them media.*holds 64"):
            await answered(language_stage(engine).chat(request))
        assert engine.requests == []
        assert engine.released == [ref.tensor], "the encode worker keeps what nobody will read"

    run(test)


def test_a_text_that_no_tokens_could_shorten_is_refused_before_it_is_tokenised() -> None:
    async def test() -> None:
        engine = ScriptedEngine()
        ref = embedding_ref(4)
        request = chat_request("a" * MAX_CONTEXT_TOKENS, reference(ref), "b")
        with pytest.raises(PromptTooLong, match=r"65 characters.*64 tokens"):
            await answered(language_stage(engine).chat(request))
        assert engine.released == [ref.tensor]

    run(test)


def test_two_prompts_are_rendered_at_a_time() -> None:
    def outcomes(size: int) -> list[object]:
        tokenizer = ByteTokenizer(threading.Barrier(size, timeout=0.2 if size > 2 else 20))

        async def test() -> list[object]:
            stage = language_stage(ScriptedEngine(), tokenizer=tokenizer)
            chats = [answered(stage.chat(chat_request("hi"))) for _ in range(size)]
            return await asyncio.gather(*chats, return_exceptions=True)

        return asyncio.run(test())

    assert all(isinstance(outcome, Answer) for outcome in outcomes(2))
    assert all(isinstance(outcome, threading.BrokenBarrierError) for outcome in outcomes(3))


def test_a_prompt_with_room_for_one_token_is_taken() -> None:
    async def test() -> None:
        engine = ScriptedEngine()
        await answered(language_stage(engine).chat(chat_request("a" * (MAX_CONTEXT_TOKENS - 1))))
        assert len(engine.requests) == 1

    run(test)


def test_what_the_engine_reports_ends_the_reply() -> None:
    async def test() -> None:
        engine = ScriptedEngine(b"ab", failure=WorkerUnavailable("the engine died"))
        events = language_stage(engine).chat(chat_request("hi"))
        assert await anext(events) == TextDelta(text="a", token_ids=(ord("a"),))
        assert await anext(events) == TextDelta(text="b", token_ids=(ord("b"),))
        with pytest.raises(WorkerUnavailable):
            await anext(events)
        assert engine.num_open == 0

    run(test)


def test_an_engine_that_ends_without_a_reason_is_our_fault() -> None:
    async def test() -> None:
        stage = language_stage(ScriptedEngine(b"ab", finish_reason=None))
        with pytest.raises(TriptychError) as caught:
            await answered(stage.chat(chat_request("hi")))
        assert caught.value.code == "internal"

    run(test)


def test_a_client_that_stops_reading_cancels_the_engine() -> None:
    async def test() -> None:
        engine = ScriptedEngine(b"abcdef")
        events = language_stage(engine).chat(chat_request("hi"))
        await anext(events)
        await events.aclose()
        assert (engine.num_open, engine.num_cancelled) == (0, 1)

    run(test)


def test_a_cancel_while_waiting_for_a_token_cancels_the_engine() -> None:
    async def test() -> None:
        engine = ScriptedEngine(b"abcdef", hangs_after=1)
        first = asyncio.Event()
        task = asyncio.create_task(_read(language_stage(engine).chat(chat_request("hi")), first))
        await first.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert (engine.num_open, engine.num_cancelled) == (0, 1)

    run(test)


async def _read(events: AsyncGenerator[ChatEvent, None], first: asyncio.Event) -> None:
    async with aclosing(events):
        async for _ in events:
            first.set()


def _took(stage: str, milliseconds: float) -> StageTiming:
    return StageTiming(stage=stage, milliseconds=milliseconds)
