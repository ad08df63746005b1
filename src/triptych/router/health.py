"""Keeps the members' health up to date."""

from __future__ import annotations

import asyncio

from triptych.errors import WorkerUnavailable
from triptych.router.members import Members, Worker
from triptych.router.upstream import ConnectFailed, Upstream

MAX_SILENT_PROBES = 3


async def probe_all(members: Members, upstream: Upstream, timeout_seconds: float) -> None:
    """Probe every worker once, together."""
    async with asyncio.TaskGroup() as group:
        for worker in members.workers:
            group.create_task(_probe(worker, upstream, timeout_seconds))


async def watch(
    members: Members, upstream: Upstream, interval_seconds: float, timeout_seconds: float
) -> None:
    """Probe every worker in each interval, each on its own: a frozen one delays nobody. Until cancelled."""
    async with asyncio.TaskGroup() as group:
        for worker in members.workers:
            group.create_task(_watch_one(worker, upstream, interval_seconds, timeout_seconds))


async def _watch_one(
    worker: Worker, upstream: Upstream, interval_seconds: float, timeout_seconds: float
) -> None:
    while True:
        await asyncio.sleep(interval_seconds)
        await _probe(worker, upstream, timeout_seconds)


async def _probe(worker: Worker, upstream: Upstream, timeout_seconds: float) -> None:
    """An answer counts at once, and so does a refused connection. Silence may be a busy moment of a live
    worker: it counts when it repeats, so that one slow answer does not take a role's only worker away."""
    try:
        status, _ = await upstream.get(worker.url, "/health", timeout_seconds)
    except ConnectFailed:
        worker.healthy, worker.silent_probes = False, 0
    except WorkerUnavailable:
        worker.silent_probes += 1
        worker.healthy = worker.healthy and worker.silent_probes < MAX_SILENT_PROBES
    else:
        worker.healthy, worker.silent_probes = status == 200, 0
