"""Results of a benchmark: a table for people, JSON lines for everything else."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from importlib.metadata import version

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One case against its baseline. `ratio` above 1: ours is better, whatever the unit.

    `equal`: outputs of ours and the baseline were the same; None if there was nothing to compare.
    """

    bench: str
    case: str
    unit: str
    ours: float
    baseline: str
    baseline_value: float
    ratio: float
    n: int
    equal: bool | None = None


def compared(
    bench: str,
    case: str,
    unit: str,
    ours: Sequence[float],
    baseline: str,
    theirs: Sequence[float],
    *,
    higher_is_better: bool,
    equal: bool | None,
) -> Result:
    """Medians of alternating runs and the median of the paired ratios."""
    pairs = [(a / b if higher_is_better else b / a) for a, b in zip(ours, theirs, strict=True)]
    return Result(
        bench=bench,
        case=case,
        unit=unit,
        ours=round(statistics.median(ours), 4),
        baseline=baseline,
        baseline_value=round(statistics.median(theirs), 4),
        ratio=round(statistics.median(pairs), 3),
        n=len(pairs),
        equal=equal,
    )


def show(results: Sequence[Result], notes: Sequence[str], console: Console, *, as_json: bool) -> None:
    if as_json:
        for result in results:
            console.out(msgspec.json.encode(result).decode(), highlight=False)
        return
    table = Table(caption=Text("\n".join([*notes, machine()])), caption_justify="left")
    for name in ("case", "ours", "baseline", "its value", "unit", "ratio", "runs", "outputs equal"):
        table.add_column(name, justify="left" if name in ("case", "baseline", "unit") else "right")
    for r in results:
        equal = {True: "yes", False: "no", None: "–"}[r.equal]
        table.add_row(
            escape(r.case),
            f"{r.ours:g}",
            escape(r.baseline),
            f"{r.baseline_value:g}",
            r.unit,
            f"{r.ratio:.2f}×",
            str(r.n),
            equal,
        )
    console.print(table)


def machine() -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {versions}"
