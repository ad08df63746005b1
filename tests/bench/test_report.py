"""Results say which of two is better, for people and for programs."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from triptych.bench.report import Result, compared, machine, show


def result(
    ours: tuple[float, ...], theirs: tuple[float, ...], *, higher_is_better: bool, equal: bool | None = True
) -> Result:
    return compared(
        "serve", "case [a]", "ms", ours, "other", theirs, higher_is_better=higher_is_better, equal=equal
    )


def printed(*results: Result, as_json: bool) -> str:
    text = io.StringIO()
    show(results, ["a note"], Console(file=text, width=150), as_json=as_json)
    return text.getvalue()


@pytest.mark.parametrize(("higher_is_better", "ratio"), [(True, 2.0), (False, 0.5)])
def test_a_ratio_above_one_is_better_whatever_the_unit(higher_is_better: bool, ratio: float) -> None:
    assert result((8.0,), (4.0,), higher_is_better=higher_is_better).ratio == ratio
    assert result((4.0,), (8.0,), higher_is_better=higher_is_better).ratio == 1 / ratio


def test_the_ratio_is_the_median_of_pairs_not_the_ratio_of_medians() -> None:
    one = result((10.0, 20.0, 90.0), (10.0, 10.0, 30.0), higher_is_better=True)
    assert (one.ours, one.baseline_value) == (20.0, 10.0)
    assert (one.ratio, one.n) == (2.0, 3)
    slow_round = result((1.0, 10.0, 100.0), (2.0, 20.0, 50.0), higher_is_better=True)
    assert slow_round.ratio == 0.5


def test_runs_that_do_not_pair_up_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        result((1.0, 2.0), (1.0,), higher_is_better=True)


def test_a_json_line_has_every_field_and_nothing_else() -> None:
    lines = printed(
        result((8.0,), (4.0,), higher_is_better=True),
        result((1.0,), (4.0,), higher_is_better=False, equal=None),
        as_json=True,
    ).splitlines()
    assert [json.loads(line) for line in lines] == [
        {
            "bench": "serve",
            "case": "case [a]",
            "unit": "ms",
            "ours": 8.0,
            "baseline": "other",
            "baseline_value": 4.0,
            "ratio": 2.0,
            "n": 1,
            "equal": True,
        },
        {
            "bench": "serve",
            "case": "case [a]",
            "unit": "ms",
            "ours": 1.0,
            "baseline": "other",
            "baseline_value": 4.0,
            "ratio": 4.0,
            "n": 1,
            "equal": None,
        },
    ]


def test_long_lines_of_json_are_not_broken() -> None:
    text = io.StringIO()
    show([result((8.0,), (4.0,), higher_is_better=True)], [], Console(file=text, width=20), as_json=True)
    assert len(text.getvalue().splitlines()) == 1


def test_the_table_shows_ratio_equality_and_machine() -> None:
    table = printed(
        result((8.0,), (4.0,), higher_is_better=True),
        result((8.0,), (4.0,), higher_is_better=True, equal=False),
        result((8.0,), (4.0,), higher_is_better=True, equal=None),
        as_json=False,
    )
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines() if "│" in line]
    assert [row[-1] for row in rows] == ["yes", "no", "–"]
    assert rows[0][:6] == ["case [a]", "8", "other", "4", "ms", "2.00×"]
    assert "a note" in table
    assert machine() in table
