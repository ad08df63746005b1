from __future__ import annotations

import asyncio
import socket

from tests.api.services import ScriptedChat
from tests.api.serving import WAIT_SECONDS, chat_app, serving
from tests.router.routing import dead_url
from triptych.router.health import MAX_SILENT_PROBES, probe_all, watch
from triptych.router.members import Members
from triptych.router.upstream import Upstream


def test_only_workers_that_are_ready_count_as_healthy() -> None:
    async def probed(members: Members) -> list[bool]:
        upstream = Upstream(4)
        async with upstream.opened():
            await probe_all(members, upstream, WAIT_SECONDS)
        return [worker.healthy for worker in members.workers]

    with (
        serving(chat_app(ScriptedChat())) as ready,
        serving(chat_app(ScriptedChat(), state="draining")) as draining,
    ):
        members = Members([dead_url()], [ready, draining])
        for worker in members.workers:
            worker.healthy = True
        assert asyncio.run(probed(members)) == [False, True, False]


def test_a_live_worker_may_miss_a_probe_but_not_several_in_a_row() -> None:
    async def probed(url: str) -> list[bool]:
        members, upstream = Members([], [url]), Upstream(4)
        members.workers[0].healthy = True
        found: list[bool] = []
        async with upstream.opened():
            for _ in range(MAX_SILENT_PROBES):
                await probe_all(members, upstream, 0.05)
                found.append(members.workers[0].healthy)
        return found

    # A listener that never answers, as a worker that is stopped or very busy.
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        url = f"http://127.0.0.1:{frozen.getsockname()[1]}"
        assert asyncio.run(probed(url)) == [True] * (MAX_SILENT_PROBES - 1) + [False]


def test_watching_notices_a_change() -> None:
    async def watched(members: Members) -> None:
        upstream = Upstream(4)
        async with upstream.opened(), asyncio.timeout(WAIT_SECONDS), asyncio.TaskGroup() as group:
            watching = group.create_task(watch(members, upstream, 0.01, 5.0))
            while not members.workers[0].healthy:  # noqa: ASYNC110  bounded above
                await asyncio.sleep(0.01)
            watching.cancel()

    with serving(chat_app(ScriptedChat())) as url:
        asyncio.run(watched(Members([], [url])))
