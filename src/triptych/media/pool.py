"""Threads for decoding, shared fairly between requests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar, TypeVarTuple

from triptych.errors import QueueFull, WorkerUnavailable

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_MAX_WAITING: Final = 16_384


class DecodePool:
    """A bounded number of threads. Each request's jobs wait in a lane; lanes take turns.

        lane A   a1 a2 a3
        lane B   b1            threads take  a1 b1 c1 a2 c2 a3
        lane C   c1 c2

    One event loop. At most `max_waiting` jobs wait.
    """

    def __init__(self, num_threads: int, max_waiting: int = _MAX_WAITING) -> None:
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix="media-decode")
        self._num_free = num_threads
        self._num_waiting = 0
        self._max_waiting = max_waiting
        self._lanes: deque[deque[asyncio.Future[None]]] = deque()
        """Lanes with jobs that wait, the next to be served first."""
        self._is_closed = False

    def lane(self) -> Lane:
        """A place in the round for one request."""
        return Lane(self)

    def close(self) -> None:
        """Refuse what waits, then block until what runs has ended. Can be called twice."""
        self._is_closed = True
        for lane in self._lanes:
            for turn in lane:
                if not turn.done():
                    turn.set_exception(WorkerUnavailable("shutting down"))
        self._executor.shutdown()

    async def take_thread(self, lane: deque[asyncio.Future[None]]) -> None:
        """Wait for a thread; give it back with `free_thread`."""
        if self._is_closed:
            raise WorkerUnavailable("shutting down")
        if self._num_waiting >= self._max_waiting:
            raise QueueFull("too much media waits to be decoded")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not lane:
            self._lanes.append(lane)
        lane.append(turn)
        self._num_waiting += 1
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.free_thread()  # granted and cancelled at once
            raise
        finally:
            self._num_waiting -= 1

    def free_thread(self) -> None:
        self._num_free += 1
        self._grant()

    async def run_now(self, work: Callable[[], T]) -> T:
        """Run in the thread that was taken. Work cannot be stopped: a cancel is passed on after its end."""
        if self._is_closed:
            raise WorkerUnavailable("shutting down")
        future = asyncio.get_running_loop().run_in_executor(self._executor, work)
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait({future})
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            future.exception()  # marks it as seen: whoever wanted the result has left
            raise cancelled
        return future.result()

    def _grant(self) -> None:
        while self._num_free > 0 and self._lanes:
            lane = self._lanes.popleft()
            turn = lane.popleft()
            if lane:
                self._lanes.append(lane)
            if not turn.done():
                turn.set_result(None)
                self._num_free -= 1


class Lane:
    """Jobs of one request."""

    def __init__(self, pool: DecodePool) -> None:
        self._pool = pool
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call `function(*args)` in one of the pool's threads, in turn.

        Cancelled before its turn, it never starts; cancelled later, it is awaited first.

        Raises:
            QueueFull: too many jobs wait.
            WorkerUnavailable: the pool is closed.
        """
        await self._pool.take_thread(self._waiting)
        try:
            return await self._pool.run_now(lambda: function(*args))
        finally:
            self._pool.free_thread()
