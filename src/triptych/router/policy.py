"""Which worker gets the next request."""

from __future__ import annotations

from collections.abc import Sequence


def least_in_flight(in_flight: Sequence[int], turn: int) -> int:
    """Position of the smallest count; equal ones take turns, `turn` being a counter of choices.

    `in_flight` must not be empty.
    """
    smallest = min(in_flight)
    tied = [position for position, count in enumerate(in_flight) if count == smallest]
    return tied[turn % len(tied)]
