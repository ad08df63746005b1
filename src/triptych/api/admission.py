"""How many requests may be in flight."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from triptych.errors import QueueFull


class Admission:
    """Counts requests in flight; one event loop only."""

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        self.num_requests = 0

    @contextmanager
    def place(self) -> Generator[None]:
        """Hold one place.

        Raises:
            QueueFull: all places are taken.
        """
        if self.num_requests >= self._max_requests:
            raise QueueFull(f"{self._max_requests} requests are in flight already")
        self.num_requests += 1
        try:
            yield
        finally:
            self.num_requests -= 1
