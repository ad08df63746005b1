from __future__ import annotations

from triptych.messages import StageTiming
from triptych.stages.timings import merged


def timing(stage: str, milliseconds: float) -> StageTiming:
    return StageTiming(stage=stage, milliseconds=milliseconds)


def test_items_that_run_together_count_once_and_others_add_up() -> None:
    found = merged(
        [
            timing("process", 3),
            timing("fetch", 5),
            timing("fetch", 2),
            timing("process", 4),
            timing("encode", 1),
        ]
    )
    assert found == (timing("fetch", 5), timing("process", 7), timing("encode", 1))


def test_nothing_measured_is_nothing_reported() -> None:
    assert merged([]) == ()
