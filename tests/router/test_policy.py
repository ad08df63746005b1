from __future__ import annotations

from triptych.router.policy import least_in_flight


def test_the_least_busy_is_chosen() -> None:
    assert least_in_flight([3, 1, 2], turn=0) == 1
    assert least_in_flight([3, 1, 2], turn=1) == 1


def test_equals_take_turns() -> None:
    assert [least_in_flight([1, 0, 0, 0], turn) for turn in range(4)] == [1, 2, 3, 1]
