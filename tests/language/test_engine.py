from __future__ import annotations

import pytest
import torch

from tests.language.tiny import (
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
from triptych.messages import Failed, TokenEvent

LENGTHS = (1, 2, 5, 16, 17, 33, 60)


@pytest.fixture(scope="module")
def expected() -> dict[str, list[int]]:
    model = qwen3()
    return {f"r{n}": reference(model, prompt(n, n), 12) for n in LENGTHS}


@pytest.mark.parametrize("budget", [16, 23, 256])
def test_mixed_load_equals_generate(expected: dict[str, list[int]], budget: int) -> None:
    engine = new_engine(TinyLanguageModel(qwen3()), max_batch_tokens=budget)
    events: dict[str, list[TokenEvent | Failed]] = {}
    for n in LENGTHS:
        engine.add(request(f"r{n}", prompt(n, n), greedy(12)))
        collect(events, engine.step().events)
    for name, more in run(engine).items():
        events.setdefault(name, []).extend(more)
    assert {name: tokens(found) for name, found in events.items()} == expected
    assert engine.step().kv_usage == 0
