from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence

import pytest

from tests.api.openai.bodies import parsed
from tests.api.services import ANSWER
from triptych.api.openai.reply import DONE, Reply, failure_events, timings_json
from triptych.api.status import problem
from triptych.errors import EmbeddingUnavailable, InternalError, WorkerUnavailable
from triptych.messages import ChatEvent, Finished, StageTiming, TextDelta, TokenText


async def _events(events: Sequence[ChatEvent]) -> AsyncGenerator[ChatEvent, None]:
    for event in events:
        yield event


def whole(events: Sequence[ChatEvent] = ANSWER, **fields: object) -> dict[str, object]:
    found = parsed(**fields)
    return json.loads(asyncio.run(Reply(found.request, found.delivery).completion(_events(events))))


def chunks(events: Sequence[ChatEvent] = ANSWER, **fields: object) -> list[dict[str, object]]:
    async def collect() -> bytes:
        found = parsed(stream=True, **fields)
        return b"".join(
            [chunk async for chunk in Reply(found.request, found.delivery).chunks(_events(events))]
        )

    *lines, done, empty = asyncio.run(collect()).split(b"\n\n")
    assert (done, empty) == (b"data: [DONE]", b"")
    return [json.loads(line.removeprefix(b"data: ")) for line in lines]


def choice(chunk: dict[str, object]) -> dict[str, object]:
    choices = chunk["choices"]
    assert isinstance(choices, list)
    return choices[0]


def test_a_whole_reply_is_a_chat_completion() -> None:
    reply = whole()
    assert reply["object"] == "chat.completion"
    assert str(reply["id"]).startswith("chatcmpl-")
    assert reply["model"] == "tiny"
    assert choice(reply) == {
        "index": 0,
        "message": {"role": "assistant", "content": "Hello", "refusal": None},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert reply["usage"] == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    assert "timings_ms" not in reply


def test_extensions_come_when_asked_for() -> None:
    reply = whole(return_token_ids=True, include_timings=True)
    assert choice(reply)["token_ids"] == [7, 8, 9]
    assert reply["timings_ms"] == {"prefill": 2.0, "decode": 4.0}


def test_a_stream_has_a_role_then_text_then_a_reason() -> None:
    found = chunks()
    assert {chunk["object"] for chunk in found} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in found}) == 1
    assert [choice(chunk)["delta"] for chunk in found] == [
        {"role": "assistant", "content": ""},
        {"content": "Hel"},
        {"content": "lo"},
        {},
    ]
    assert [choice(chunk)["finish_reason"] for chunk in found] == [None, None, None, "stop"]


def test_usage_comes_in_a_last_chunk_without_choices() -> None:
    *others, last = chunks(stream_options={"include_usage": True}, include_timings=True)
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    assert last["timings_ms"] == {"prefill": 2.0, "decode": 4.0}
    assert all(chunk["usage"] is None for chunk in others)


def test_streamed_deltas_carry_token_ids_even_without_text() -> None:
    events = (TextDelta(text="", token_ids=(3,)), TextDelta(text="x", token_ids=(4,)), ANSWER[-1])
    assert [choice(chunk).get("token_ids") for chunk in chunks(events, return_token_ids=True)[1:3]] == [
        [3],
        [4],
    ]
    assert len(chunks(events)) == 3


def test_logprobs_are_shown_only_when_asked_for() -> None:
    token = TokenText(token="a", token_bytes=b"a", logprob=-1.0)
    events = (TextDelta(text="a", token_ids=(1,), logprobs=(token,)), ANSWER[-1])
    content = [{"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}]
    assert choice(whole(events, logprobs=True))["logprobs"] == {"content": content, "refusal": None}
    assert choice(whole(events))["logprobs"] is None
    assert choice(chunks(events, logprobs=True)[1])["logprobs"] == {"content": content, "refusal": None}


def test_cancelled_never_reaches_users() -> None:
    cut = Finished(finish_reason="cancelled", num_prompt_tokens=1, num_output_tokens=0)
    with pytest.raises(WorkerUnavailable):
        whole([cut])
    with pytest.raises(WorkerUnavailable):
        chunks([cut])


def test_a_reply_without_an_end_is_our_fault() -> None:
    with pytest.raises(InternalError):
        whole(ANSWER[:1])
    with pytest.raises(InternalError):
        chunks(ANSWER[:1])


def test_a_failure_ends_a_stream_as_an_event() -> None:
    first, rest = failure_events(problem(EmbeddingUnavailable("image 1 is gone"))).split(b"\n\n", 1)
    assert json.loads(first.removeprefix(b"data: "))["error"]["code"] == "embedding_unavailable"
    assert rest == DONE


def test_a_stage_that_is_listed_twice_is_summed() -> None:
    twice = tuple(StageTiming(stage="encode", milliseconds=ms) for ms in (1.0, 2.5))
    assert timings_json(twice) == {"encode": 3.5}
