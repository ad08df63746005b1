from __future__ import annotations

import pytest
import torch

from tests.language.shelf import new_shelf, placed, rows
from tests.language.tiny import (
    EOS,
    TinyLanguageModel,
    collect,
    greedy,
    new_engine,
    prompt,
    qwen3,
    reference,
    request,
    run,
    tokens,
)
from triptych.errors import InvalidHandle, InvalidRequest, PromptTooLong, QueueFull
from triptych.messages import Failed, SamplingParams, TokenEvent
from triptych.telemetry import DECODE, PREFILL, QUEUE, TRANSFER

LENGTHS = (1, 2, 5, 16, 17, 33, 60)


@pytest.fixture(scope="module")
def model() -> TinyLanguageModel:
    return TinyLanguageModel(qwen3())


@pytest.fixture(scope="module")
def expected() -> dict[str, list[int]]:
    model = qwen3()
    return {f"r{n}": reference(model, prompt(n, n), 12) for n in LENGTHS}


@pytest.mark.parametrize("budget", [3, 16, 23, 256])
def test_mixed_load_equals_generate(
    model: TinyLanguageModel, expected: dict[str, list[int]], budget: int
) -> None:
    engine = new_engine(model, max_batch_tokens=budget)
    events: dict[str, list[TokenEvent | Failed]] = {}
    for n in LENGTHS:
        engine.add(request(f"r{n}", prompt(n, n), greedy(12)))
        collect(events, engine.step().events)
    for name, more in run(engine).items():
        events.setdefault(name, []).extend(more)
    assert {name: tokens(found) for name, found in events.items()} == expected
    assert engine.step().kv_usage == 0


@pytest.mark.parametrize("num_pages", [19, 24, 30])
def test_preempted_sequences_end_with_the_same_tokens(
    model: TinyLanguageModel, expected: dict[str, list[int]], num_pages: int
) -> None:
    engine = new_engine(model, num_pages=num_pages, max_batch_tokens=32)
    for n in LENGTHS:
        engine.add(request(f"r{n}", prompt(n, n), greedy(12)))
    begun = len(model.batch_sizes)
    events = run(engine)
    assert {name: tokens(found) for name, found in events.items()} == expected
    computed_once = sum(n + 12 - 1 for n in LENGTHS)
    assert num_pages > 20 or sum(model.batch_sizes[begun:]) > computed_once
    assert engine.step().kv_usage == 0


@pytest.mark.parametrize(("budget", "num_pages"), [(7, 64), (256, 64), (32, 19)])
def test_embeddings_stand_in_their_places(model: TinyLanguageModel, budget: int, num_pages: int) -> None:
    reference_model = qwen3()
    embeds = reference_model.get_input_embeddings()(torch.tensor(prompt(40, 0))).detach()
    embeds[3:8], embeds[11:16], embeds[30:36] = rows(10)[:5], rows(10)[5:], rows(6)
    wanted = reference(reference_model, prompt(40, 0), 10, embeds)
    with new_shelf() as shelf:
        engine = new_engine(model, shelf.consumer, max_batch_tokens=budget, num_pages=num_pages)
        for name in "abc":
            items = (placed(shelf.ready(10), (3, 5), (11, 5)), placed(shelf.ready(6), (30, 6)))
            engine.add(request(name, prompt(40, 0), greedy(10), items=items))
        events = run(engine)
        assert [tokens(events[name]) for name in "abc"] == [wanted] * 3
        engine.close()
        assert shelf.num_references == 0


def test_one_reference_in_two_places_is_fetched_once(model: TinyLanguageModel) -> None:
    with new_shelf() as shelf:
        engine = new_engine(model, shelf.consumer)
        ref = shelf.ready(4)
        items = (placed(ref, (2, 4)), placed(ref, (10, 4)))
        engine.add(request("a", prompt(20, 0), greedy(3), items=items))
        assert len(tokens(run(engine)["a"])) == 3
        engine.close()
        assert shelf.num_references == 0


def test_end_token_stops_unless_ignored(model: TinyLanguageModel, expected: dict[str, list[int]]) -> None:
    stop = expected["r33"][4]
    first = expected["r33"].index(stop)
    engine = new_engine(model)
    sampling = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, stop_token_ids=(stop,))
    engine.add(request("r33", prompt(33, 33), sampling))
    events = run(engine)["r33"]
    assert tokens(events) == expected["r33"][: first + 1]
    assert _reasons(events) == [None] * first + ["stop"]


def test_models_own_end_token_stops() -> None:
    model = TinyLanguageModel(qwen3())
    ended = reference(qwen3(), prompt(33, 33), 3)[2]
    model.eos_token_ids = (EOS, ended)
    engine = new_engine(model)
    engine.add(request("a", prompt(33, 33), greedy(12, ignore_eos=False)))
    assert _reasons(run(engine)["a"])[-1] == "stop"


def test_output_ends_at_max_tokens_or_the_context(model: TinyLanguageModel) -> None:
    engine = new_engine(model, max_context_tokens=24)
    engine.add(request("few", prompt(20, 0), greedy(2)))
    engine.add(request("all", prompt(20, 0), SamplingParams(temperature=0, ignore_eos=True)))
    engine.add(request("last", prompt(23, 0), greedy(9)))
    events = run(engine)
    assert {name: _reasons(found) for name, found in events.items()} == {
        "few": [None, "length"],
        "all": [None, None, None, "length"],
        "last": ["length"],
    }


def test_pool_smaller_than_the_context_bounds_the_output(model: TinyLanguageModel) -> None:
    engine = new_engine(model, num_pages=3, page_tokens=4)
    engine.add(request("a", prompt(9, 0), SamplingParams(temperature=0, ignore_eos=True)))
    assert _reasons(run(engine)["a"]) == [None, None, "length"]


def test_prompt_that_can_never_fit_is_refused(model: TinyLanguageModel) -> None:
    engine = new_engine(model, num_pages=3, page_tokens=4)
    with pytest.raises(PromptTooLong, match="12 tokens"):
        engine.add(request("a", prompt(12, 0)))
    assert engine.idle


def test_full_queue_refuses_and_serves_the_others(model: TinyLanguageModel) -> None:
    engine = new_engine(model, max_waiting=2)
    engine.add(request("a", prompt(5, 0)))
    engine.add(request("b", prompt(5, 0)))
    with pytest.raises(QueueFull):
        engine.add(request("c", prompt(5, 0)))
    assert set(run(engine)) == {"a", "b"}


def test_malformed_requests_are_refused_and_their_references_released(model: TinyLanguageModel) -> None:
    with new_shelf() as shelf:
        engine = new_engine(model, shelf.consumer)
        for runs in (((3, 3),), ((18, 4),), ((3, 2), (4, 2)), ((2, 0), (3, 4)), ()):
            with pytest.raises(InvalidHandle, match="image 1"):
                engine.add(request("a", prompt(20, 0), items=(placed(shelf.ready(4), *runs),)))
        with pytest.raises(InvalidRequest, match="empty"):
            engine.add(request("a", ()))
        engine.close()
        assert shelf.num_references == 0


def test_id_in_use_is_refused(model: TinyLanguageModel) -> None:
    engine = new_engine(model)
    engine.add(request("a", prompt(5, 0)))
    with pytest.raises(InvalidRequest, match="this id"):
        engine.add(request("a", prompt(5, 0)))


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_deadline_ends_a_request_waiting_or_running(model: TinyLanguageModel, steps: int) -> None:
    clock = [0.0]
    engine = new_engine(model, clock=lambda: clock[0])
    engine.add(request("late", prompt(5, 0), greedy(50), deadline_ms=1000))
    engine.add(request("fine", prompt(5, 0), greedy(4)))
    for _ in range(steps):
        engine.step()
    clock[0] = 1.0
    events = run(engine)
    (failed,) = [event for event in events["late"] if isinstance(event, Failed)]
    assert (failed.code, failed.retryable) == ("deadline_exceeded", True)
    assert all(isinstance(event, TokenEvent) for event in events.get("fine", []))
    assert engine.step().kv_usage == 0


def test_failed_forward_ends_its_batch_only(model: TinyLanguageModel) -> None:
    engine = new_engine(model)
    for name in "ab":
        engine.add(request(name, prompt(9, 1)))
    engine.step()
    model.broken = True
    events = engine.step().events
    assert [(type(event), getattr(event, "code", None)) for event in events] == [(Failed, "internal")] * 2
    assert engine.idle
    engine.add(request("r16", prompt(16, 16)))
    assert len(run(engine)["r16"]) == 8
    assert engine.step().kv_usage == 0


def test_seed_gives_the_same_tokens_alone_and_in_a_batch(model: TinyLanguageModel) -> None:
    sampling = SamplingParams(max_tokens=10, seed=11, temperature=0.9, top_p=0.95, ignore_eos=True)
    alone = new_engine(model)
    alone.add(request("a", prompt(21, 3), sampling))
    wanted = tokens(run(alone)["a"])
    engine = new_engine(model, max_batch_tokens=20)
    engine.add(request("b", prompt(30, 4), SamplingParams(max_tokens=20, seed=5, ignore_eos=True)))
    engine.step()
    engine.add(request("a", prompt(21, 3), sampling))
    engine.add(request("c", prompt(30, 4), greedy(20)))
    assert tokens(run(engine)["a"]) == wanted


def test_logprobs_equal_the_references(model: TinyLanguageModel) -> None:
    engine = new_engine(model, max_batch_tokens=9)
    sampling = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True, num_logprobs=3)
    engine.add(request("a", prompt(20, 2), sampling))
    events = run(engine)["a"]
    ids = torch.tensor([[*prompt(20, 2), *tokens(events)]])
    with torch.no_grad():
        expected = qwen3()(ids).logits[0, 19:-1].log_softmax(-1)
    for event, row in zip(events, expected, strict=True):
        assert isinstance(event, TokenEvent)
        assert event.logprobs is not None
        assert event.logprobs.logprob == pytest.approx(float(row[event.token_id]), abs=1e-4)
        values, likeliest = row.topk(3)
        assert [token for token, _ in event.logprobs.top] == likeliest.tolist()
        assert [value for _, value in event.logprobs.top] == pytest.approx(values.tolist(), abs=1e-4)


def test_last_token_carries_the_timings_of_every_stage(model: TinyLanguageModel) -> None:
    with new_shelf() as shelf:
        engine = new_engine(model, shelf.consumer)
        ref = shelf.pending(4)
        shelf.publish(ref, encode_ms=12.5)
        engine.add(request("a", prompt(20, 0), greedy(3), items=(placed(ref, (2, 4)),)))
        events = run(engine)["a"]
        engine.close()
    timings = [event.timings for event in events if isinstance(event, TokenEvent)]
    assert timings[:2] == [(), ()]
    assert [timing.stage for timing in timings[2]] == ["encode", TRANSFER, QUEUE, PREFILL, DECODE]
    assert timings[2][0].milliseconds == 12.5
    assert all(timing.milliseconds >= 0 for timing in timings[2])


def test_nan_of_one_request_stays_its_own(model: TinyLanguageModel, expected: dict[str, list[int]]) -> None:
    with new_shelf() as shelf:
        engine = new_engine(model, shelf.consumer, num_pages=40)
        ref = shelf.pending(4)
        shelf.producer.publish(ref, torch.full(ref.shape, float("nan")))
        engine.add(request("bad", prompt(33, 0), items=(placed(ref, (0, 4)),)))
        engine.add(request("r33", prompt(33, 33), greedy(12)))
        events = run(engine)
        engine.add(request("r60", prompt(60, 60), greedy(12)))
        engine.add(request("r5", prompt(5, 5), greedy(12)))
        events |= run(engine)
        engine.close()
    assert [getattr(event, "code", None) for event in events.pop("bad")] == ["internal"]
    assert {name: tokens(found) for name, found in events.items()} == {
        name: expected[name] for name in ("r33", "r60", "r5")
    }


def _reasons(events: list[TokenEvent | Failed]) -> list[str | None]:
    return [event.finish_reason for event in events if isinstance(event, TokenEvent)]
