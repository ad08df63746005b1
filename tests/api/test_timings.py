from __future__ import annotations

import msgspec

from tests.api.openai.bodies import parsed
from triptych.api.timings import response_timing
from triptych.messages import StageTiming


def timing(stage: str, milliseconds: float) -> StageTiming:
    return StageTiming(stage=stage, milliseconds=milliseconds)


def test_response_is_what_the_stages_leave_over() -> None:
    request = parsed().request
    measured = (timing("prefill", 3.0), timing("decode", 4.0))
    assert response_timing(request, measured, 10.0) == timing("response", 3.0)


def test_time_at_an_encode_worker_is_not_taken_off() -> None:
    request = msgspec.structs.replace(parsed().request, item_timings=(timing("process", 50.0),))
    measured = (timing("process", 50.0), timing("decode", 4.0))
    assert response_timing(request, measured, 10.0) == timing("response", 6.0)


def test_response_is_never_negative() -> None:
    assert response_timing(parsed().request, (timing("decode", 4.0),), 1.0) == timing("response", 0.0)
