"""Cancel at any stage: after it, nothing of the request is left, and the others never notice."""

from __future__ import annotations

import random

import pytest

from tests.language.shelf import new_shelf, placed
from tests.language.tiny import TinyLanguageModel, greedy, new_engine, prompt, qwen3, request, run, tokens
from triptych.messages import PromptItem, TensorRef, TokenEvent


@pytest.fixture(scope="module")
def model() -> TinyLanguageModel:
    return TinyLanguageModel(qwen3())


@pytest.mark.parametrize("seed", range(12))
def test_random_cancels_leave_no_page_and_no_reference(model: TinyLanguageModel, seed: int) -> None:
    chance = random.Random(seed)
    with new_shelf() as shelf:
        engine = new_engine(
            model,
            shelf.consumer,
            num_pages=chance.choice([16, 40]),
            max_batch_tokens=chance.choice([5, 64]),
            max_embedding_bytes=chance.choice([2000, 100_000]),
            num_fetch_threads=2,
        )
        unpublished: list[TensorRef] = []
        alive: list[str] = []
        cancelled: set[str] = set()
        for index in range(60):
            action = chance.random()
            if action < 0.35:
                items: list[PromptItem] = []
                for place in range(chance.choice([0, 0, 1, 2])):
                    unpublished.append(shelf.pending(4))
                    items.append(placed(unpublished[-1], (2 + 6 * place, 4)))
                alive.append(f"r{index}")
                sampling = greedy(chance.randint(1, 12))
                length = chance.randint(14, 40)
                engine.add(request(alive[-1], prompt(length, index), sampling, items=tuple(items)))
            elif action < 0.5 and unpublished:
                shelf.publish(unpublished.pop(chance.randrange(len(unpublished))))
            elif action < 0.65 and alive:
                cancelled.add(alive.pop(chance.randrange(len(alive))))
                for request_id in cancelled:
                    engine.cancel(request_id)
            else:
                events = engine.step().events
                assert not {event.request_id for event in events} & cancelled
                ended = {e.request_id for e in events if isinstance(e, TokenEvent) and e.finish_reason}
                alive = [request_id for request_id in alive if request_id not in ended]
        for ref in unpublished:
            shelf.publish(ref)
        events = run(engine)
        assert all(isinstance(event, TokenEvent) for found in events.values() for event in found)
        assert set(events) == set(alive)
        output = engine.step()
        assert (output.kv_usage, output.num_running, output.num_waiting) == (0, 0, 0)
        engine.close()
        assert shelf.num_references == 0


def test_survivor_of_a_cancelled_batch_gets_the_same_tokens(model: TinyLanguageModel) -> None:
    alone = new_engine(model)
    alone.add(request("a", prompt(30, 1), greedy(12)))
    wanted = tokens(run(alone)["a"])
    engine = new_engine(model, max_batch_tokens=16)
    engine.add(request("b", prompt(25, 2), greedy(12)))
    engine.add(request("a", prompt(30, 1), greedy(12)))
    engine.add(request("c", prompt(25, 3), greedy(12)))
    found = list(engine.step().events)
    engine.cancel("c")
    found += engine.step().events
    engine.cancel("b")
    found += run(engine)["a"]
    assert tokens([event for event in found if event.request_id == "a"]) == wanted


def test_cancelling_the_unknown_is_harmless(model: TinyLanguageModel) -> None:
    engine = new_engine(model)
    engine.cancel("nobody")
    assert engine.idle
