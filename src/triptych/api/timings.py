"""The `response` stage: what a request took beyond the stages that were measured."""

from __future__ import annotations

from triptych.messages import ChatRequest, StageTiming
from triptych.telemetry import RESPONSE


def response_timing(
    request: ChatRequest, measured: tuple[StageTiming, ...], wall_milliseconds: float
) -> StageTiming:
    """`wall_milliseconds` is this process's share of the request. `measured` may include `item_timings`: time
    that passed elsewhere and before."""
    elsewhere = {timing.stage: timing.milliseconds for timing in request.item_timings}
    here = {timing.stage: 0.0 for timing in measured}
    for timing in measured:
        here[timing.stage] += timing.milliseconds
    known = sum(max(0.0, spent - elsewhere.get(stage, 0.0)) for stage, spent in here.items())
    return StageTiming(stage=RESPONSE, milliseconds=max(0.0, wall_milliseconds - known))
