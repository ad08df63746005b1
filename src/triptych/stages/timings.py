"""Many timings of one request → one a stage."""

from __future__ import annotations

from collections.abc import Iterable

from triptych.messages import StageTiming
from triptych.telemetry import STAGES, TOGETHER


def merged(timings: Iterable[StageTiming]) -> tuple[StageTiming, ...]:
    """One entry a stage, in the order in which a request meets them."""
    totals: dict[str, float] = {}
    for timing in timings:
        before = totals.get(timing.stage, 0.0)
        both = max(before, timing.milliseconds) if timing.stage in TOGETHER else before + timing.milliseconds
        totals[timing.stage] = both
    return tuple(StageTiming(stage=stage, milliseconds=totals[stage]) for stage in STAGES if stage in totals)
