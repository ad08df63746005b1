from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from tests.media.make_server import until
from triptych.errors import MediaFetchFailed, WorkerUnavailable
from triptych.media.flight import SingleFlight


class Work:
    """Counts its runs; ends when told to."""

    def __init__(self) -> None:
        self.num_started = 0
        self.num_cancelled = 0
        self.may_end = asyncio.Event()

    async def __call__(self) -> str:
        self.num_started += 1
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        return f"result {self.num_started}"


def run(test: Callable[[SingleFlight[str], Work], Coroutine[None, None, None]]) -> None:
    async def bounded() -> None:
        flights: SingleFlight[str] = SingleFlight()
        async with asyncio.timeout(10):
            await test(flights, Work())
        assert flights.num_in_flight == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(bounded())


def test_waiters_of_one_key_share_one_run() -> None:
    async def test(flights: SingleFlight[str], work: Work) -> None:
        tasks = [asyncio.create_task(flights.run("key", work)) for _ in range(5)]
        await until(lambda: work.num_started == 1)
        work.may_end.set()
        assert await asyncio.gather(*tasks) == ["result 1"] * 5
        assert await flights.run("key", work) == "result 2"

    run(test)


def test_cancelled_waiter_leaves_the_others_theirs() -> None:
    async def test(flights: SingleFlight[str], work: Work) -> None:
        first, second = (asyncio.create_task(flights.run("key", work)) for _ in range(2))
        await until(lambda: work.num_started == 1)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        work.may_end.set()
        assert await second == "result 1"
        assert work.num_cancelled == 0

    run(test)


def test_last_waiter_takes_the_work_with_it() -> None:
    async def test(flights: SingleFlight[str], work: Work) -> None:
        tasks = [asyncio.create_task(flights.run("key", work)) for _ in range(2)]
        await until(lambda: work.num_started == 1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() for task in tasks)
        assert work.num_cancelled == 1

    run(test)


def test_who_comes_after_the_last_waiter_left_starts_anew() -> None:
    async def test(flights: SingleFlight[str], work: Work) -> None:
        leaver = asyncio.create_task(flights.run("key", work))
        await until(lambda: work.num_started == 1)
        leaver.cancel()
        joiner = asyncio.create_task(flights.run("key", work))
        await until(lambda: work.num_started == 2)
        work.may_end.set()
        assert await joiner == "result 2"
        assert leaver.cancelled()

    run(test)


def test_failure_reaches_every_waiter() -> None:
    async def fail() -> str:
        raise MediaFetchFailed("gone")

    async def test(flights: SingleFlight[str], work: Work) -> None:
        results = await asyncio.gather(*(flights.run("key", fail) for _ in range(3)), return_exceptions=True)
        assert [str(result) for result in results] == ["gone"] * 3

    run(test)


def test_close_ends_waiting_with_an_error() -> None:
    async def test(flights: SingleFlight[str], work: Work) -> None:
        waiter = asyncio.create_task(flights.run("key", work))
        await until(lambda: work.num_started == 1)
        await flights.close()
        with pytest.raises(WorkerUnavailable):
            await waiter
        with pytest.raises(WorkerUnavailable):
            await flights.run("key", work)
        await flights.close()
        assert work.num_cancelled == 1

    run(test)
