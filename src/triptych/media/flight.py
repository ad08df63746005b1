"""One piece of shared work at a time for a key; who asks meanwhile waits for the same result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Generic, TypeVar

from triptych.errors import WorkerUnavailable

T = TypeVar("T")


@dataclass(slots=True)
class _Flight(Generic[T]):
    task: asyncio.Task[T]
    num_waiters: int = 0


class SingleFlight(Generic[T]):
    """Runs work for a key once, however many wait for it. One event loop; nothing is kept afterwards.

    The work is a task of its own, because it must outlive the waiter that started it. It is cancelled, and
    awaited, when its last waiter leaves.
    """

    def __init__(self) -> None:
        self._flights: dict[str, _Flight[T]] = {}
        self._is_closed = False

    @property
    def num_in_flight(self) -> int:
        return len(self._flights)

    async def run(self, key: str, work: Callable[[], Coroutine[None, None, T]]) -> T:
        """The result of `work`, or of the same key's work that is already under way.

        Raises:
            WorkerUnavailable: closed meanwhile; else whatever `work` raises.
        """
        if self._is_closed:
            raise WorkerUnavailable("shutting down")
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.create_task(work()))
            flight.task.add_done_callback(lambda task: self._forget(key, task))
        flight.num_waiters += 1
        try:
            await asyncio.wait({flight.task})
        finally:
            flight.num_waiters -= 1
            if flight.num_waiters == 0:
                self._forget(key, flight.task)
                await _settle(flight.task)
        if flight.task.cancelled():
            raise WorkerUnavailable("shutting down")
        return flight.task.result()

    async def close(self) -> None:
        """Cancel everything under way; waiters get WorkerUnavailable. Can be called twice."""
        self._is_closed = True
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _forget(self, key: str, task: asyncio.Task[T]) -> None:
        if (flight := self._flights.get(key)) is not None and flight.task is task:
            del self._flights[key]


async def _settle(task: asyncio.Task[T]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # marks it as seen: whoever wanted it has left
