"""All servers get the same new pictures in turn; results say which was better and whether it was equal."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.api.serving import serving
from tests.bench.server_program import answering
from tests.standing_in import stand_in_for_python
from triptych.bench.serve import ServeBench, bench_serve
from triptych.errors import StartupError


@pytest.fixture(autouse=True)
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_for_python("tests.bench.server_program", tmp_path, monkeypatch)


def small(model: str) -> ServeBench:
    return ServeBench(Path(f"/models/{model}"), num_requests=3, concurrency=2, rounds=2)


def results(bench: ServeBench) -> list[dict[str, Any]]:
    text = io.StringIO()
    bench_serve(bench, Console(file=text), as_json=True)
    return [json.loads(line) for line in text.getvalue().splitlines()]


def test_the_layouts_are_compared_with_each_other() -> None:
    found = results(small("m"))
    assert [(line["case"], line["unit"]) for line in found] == [
        ("e+pd requests/s", "requests/s"),
        ("e+pd TTFT p50", "ms"),
        ("e+pd TTFT p90", "ms"),
    ]
    for line in found:
        assert (line["bench"], line["baseline"], line["n"], line["equal"]) == ("serve", "none", 2, True)


def test_answers_that_differ_are_told() -> None:
    assert [line["equal"] for line in results(small("unequal"))] == [False] * 3


def test_a_peer_is_the_baseline_of_both_layouts_and_gets_new_pictures_only() -> None:
    seen: list[str] = []
    with serving(answering("", seen)) as url:
        found = results(replace(small("m"), peers=(("other", url, "its-model"),)))
    assert {line["baseline"] for line in found} == {"other"}
    assert [line["case"] for line in found if line["unit"] == "requests/s"] == [
        "none requests/s",
        "e+pd requests/s",
    ]
    assert all(line["equal"] for line in found)
    assert len(seen) == 3 * (2 + 1)  # A round to warm up, and two that count.
    assert len(set(seen)) == len(seen)


def test_the_table_says_how_it_was_measured() -> None:
    text = io.StringIO()
    bench_serve(small("m"), Console(file=text, width=150), as_json=False)
    assert "3 requests a round, 2 at a time" in text.getvalue()
    assert "7 + 3 tokens" in text.getvalue()
    assert "e+pd: 6 of 6 texts equal to none" in text.getvalue()


def test_a_server_that_does_not_start_is_an_error() -> None:
    with pytest.raises(StartupError, match="did not start"):
        results(small("broken"))
