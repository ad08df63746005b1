from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.media.make_image import solid_png
from tests.media.make_server import Server, answer, by_path, serve, until
from tests.media.make_video import video
from tests.stages.preparing import (
    CONFIG,
    DEADLINE_SECONDS,
    POLICY,
    RED,
    corner,
    held_sampler,
    images_of,
    inline,
    items_of,
    loopback,
    preparer,
    run,
    videos_of,
)
from triptych.errors import (
    DeadlineExceeded,
    MediaFetchFailed,
)
from triptych.media.fetch import Fetcher


def test_first_failure_in_request_order_is_raised_when_all_have_settled() -> None:
    release = asyncio.Event()

    async def respond(path: str, writer: asyncio.StreamWriter) -> None:
        if path != "/fast404":
            await release.wait()
        writer.write(answer(404 if "404" in path else 200, solid_png(RED)))
        await writer.drain()

    async def test() -> None:
        async with serve(respond) as server, preparer() as stage:
            paths = ["/ok1", "/slow404", "/fast404", "/ok2"]
            items = images_of(*(server.url(path) for path in paths))
            task = asyncio.create_task(stage.prepare(items, POLICY, DEADLINE_SECONDS))
            await until(lambda: len(server.paths) == 4 and server.num_open == 3)
            assert not task.done()
            release.set()
            with pytest.raises(MediaFetchFailed, match=r"^image 2: .*HTTP 404") as caught:
                await task
            assert caught.value.item == "image 2"
            await until(lambda: server.num_open == 0)

    run(test)


def test_cancel_during_fetch_closes_connections_and_starts_nothing_more() -> None:
    async def silent(path: str, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def test() -> None:
        config = replace(CONFIG, fetch=replace(CONFIG.fetch, max_concurrent=2))
        async with serve(silent) as server, preparer(config) as stage:
            items = images_of(*(server.url(f"/{i}") for i in range(5)))
            task = asyncio.create_task(stage.prepare(items, POLICY, DEADLINE_SECONDS))
            await until(lambda: len(server.paths) == 2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: server.num_open == 0)
            assert len(server.paths) == 2

    run(test)


def test_cancel_during_decode_waits_for_the_running_and_drops_the_waiting() -> None:
    sampler = held_sampler()

    async def test() -> None:
        async with preparer(num_threads=1) as stage:
            items = videos_of(*(inline(video(3 + n)) for n in range(3)))
            policy = replace(POLICY, sample_frames=sampler)
            task = asyncio.create_task(stage.prepare(items, policy, DEADLINE_SECONDS))
            await until(sampler.started.is_set)
            task.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
            assert not task.done()
            sampler.release.set()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert sampler.num_calls == 1

    run(test)


def test_cancelled_request_leaves_another_with_the_same_source_alone() -> None:
    release = asyncio.Event()

    async def held(path: str, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(answer(200, solid_png(RED)))
        await writer.drain()

    async def test() -> None:
        async with serve(held) as server, preparer() as stage:
            items = items_of(("image", server.url("/x")))
            leaver, stayer = (
                asyncio.create_task(stage.prepare(items, POLICY, DEADLINE_SECONDS)) for _ in range(2)
            )
            await until(lambda: len(server.paths) == 1)
            leaver.cancel()
            release.set()
            assert corner((await stayer)[0]) == list(RED)
            assert server.paths == ["/x"]
            with pytest.raises(asyncio.CancelledError):
                await leaver

    run(test)


def test_event_loop_runs_on_while_every_thread_decodes() -> None:
    sampler = held_sampler()

    async def test() -> None:
        async with preparer() as stage:
            items = videos_of(*(inline(video(3 + n)) for n in range(4)))
            policy = replace(POLICY, sample_frames=sampler)
            task = asyncio.create_task(stage.prepare(items, policy, DEADLINE_SECONDS))
            await until(sampler.started.is_set)
            async with serve(by_path({"/health": answer(200, b"ok")})) as server:  # the loop still serves
                assert await _get(server) == 200
            sampler.release.set()
            assert len(await task) == 4

    run(test)


async def _get(server: Server) -> int:
    fetcher = Fetcher(CONFIG.fetch, loopback)
    try:
        return 200 if await fetcher.fetch(server.url("/health"), 5) == b"ok" else 0
    finally:
        await fetcher.close()


def test_deadline_ends_the_request_and_its_connections() -> None:
    async def silent(path: str, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def test() -> None:
        async with serve(silent) as server, preparer() as stage:
            items = items_of(("image", server.url("/x")), ("image", inline(solid_png(RED))))
            with pytest.raises(DeadlineExceeded):
                await stage.prepare(items, POLICY, 0.2)
            await until(lambda: server.num_open == 0)

    run(test)
