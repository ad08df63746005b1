from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine

import pytest

from tests.media.make_server import until
from triptych.errors import MediaInvalid, QueueFull, WorkerUnavailable
from triptych.media.pool import DecodePool, Lane

WAIT_SECONDS = 10


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            await test()

    asyncio.run(bounded())


async def blocked_thread(pool: DecodePool) -> tuple[threading.Event, asyncio.Task[bool]]:
    """Occupy one thread until the event is set."""
    release, started = threading.Event(), threading.Event()

    def hold() -> bool:
        started.set()
        return release.wait(WAIT_SECONDS)

    task = asyncio.create_task(pool.lane().run(hold))
    await until(started.is_set)
    return release, task


def test_result_and_error_come_back() -> None:
    def fail() -> None:
        raise MediaInvalid("broken")

    async def test() -> None:
        pool = DecodePool(1)
        assert await pool.lane().run(divmod, 7, 2) == (3, 1)
        with pytest.raises(MediaInvalid, match="broken"):
            await pool.lane().run(fail)
        assert await pool.lane().run(lambda: threading.current_thread().name != "MainThread")
        pool.close()

    run(test)


def test_lanes_take_turns() -> None:
    order: list[str] = []

    async def test() -> None:
        pool = DecodePool(1)
        release, holder = await blocked_thread(pool)
        lanes = {name: pool.lane() for name in "abc"}
        names = ["a1", "a2", "a3", "b1", "c1", "c2"]
        tasks = [asyncio.create_task(lanes[name[0]].run(order.append, name)) for name in names]
        await asyncio.sleep(0)
        release.set()
        await asyncio.gather(holder, *tasks)
        pool.close()

    run(test)
    assert order == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_no_more_jobs_run_than_there_are_threads() -> None:
    running: set[int] = set()
    most = 0
    lock = threading.Lock()

    def work(number: int) -> None:
        nonlocal most
        with lock:
            running.add(number)
            most = max(most, len(running))
        threading.Event().wait(0.005)
        with lock:
            running.remove(number)

    async def test() -> None:
        pool = DecodePool(2)
        lane = pool.lane()
        await asyncio.gather(*(lane.run(work, number) for number in range(12)))
        pool.close()

    run(test)
    assert most <= 2


def test_job_cancelled_before_its_turn_never_starts() -> None:
    started: list[str] = []

    async def test() -> None:
        pool = DecodePool(1)
        release, holder = await blocked_thread(pool)
        lane = pool.lane()
        leaver, stayer = (
            asyncio.create_task(lane.run(started.append, name)) for name in ("leaver", "stayer")
        )
        await asyncio.sleep(0)
        leaver.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaver
        release.set()
        await asyncio.gather(holder, stayer)
        pool.close()

    run(test)
    assert started == ["stayer"]


def test_running_job_is_awaited_before_the_cancel_is_raised() -> None:
    async def test() -> None:
        pool = DecodePool(1)
        release, holder = await blocked_thread(pool)
        for _ in range(2):
            holder.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not holder.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await holder
        assert await pool.lane().run(lambda: "free again") == "free again"
        pool.close()

    run(test)


def test_job_cancelled_as_its_turn_comes_gives_the_thread_back() -> None:
    async def test() -> None:
        pool = DecodePool(1)
        task = asyncio.create_task(pool.lane().run(lambda: None))
        await asyncio.sleep(0)  # the turn is granted, the job not yet started
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await pool.lane().run(lambda: 1) == 1
        pool.close()

    run(test)


def test_full_queue_is_refused() -> None:
    async def test() -> None:
        pool = DecodePool(1, max_waiting=2)
        release, holder = await blocked_thread(pool)
        lane: Lane = pool.lane()
        tasks = [asyncio.create_task(lane.run(int)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await lane.run(int)
        release.set()
        await asyncio.gather(holder, *tasks)
        assert await lane.run(int) == 0
        pool.close()

    run(test)


def test_closed_pool_refuses_what_waits_and_what_comes() -> None:
    async def test() -> None:
        pool = DecodePool(1)
        release, holder = await blocked_thread(pool)
        waiter = asyncio.create_task(pool.lane().run(int))
        await asyncio.sleep(0)
        release.set()
        pool.close()
        pool.close()
        with pytest.raises(WorkerUnavailable):
            await waiter
        assert await holder
        with pytest.raises(WorkerUnavailable):
            await pool.lane().run(int)

    run(test)
