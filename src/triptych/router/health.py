"""Keeps the members' health up to date."""

from __future__ import annotations

import asyncio

from triptych.errors import WorkerUnavailable
from triptych.router.members import Members, Worker
from triptych.router.upstream import Upstream


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
    try:
        status, _ = await upstream.get(worker.url, "/health", timeout_seconds)
    except WorkerUnavailable:
        status = 0
    worker.healthy = status == 200
