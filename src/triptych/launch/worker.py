"""A worker process: HTTP at once, its stages as soon as they are loaded."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass

import uvicorn
from prometheus_client import CollectorRegistry

from triptych.api.http import worker_app
from triptych.api.service import ReadyState
from triptych.config import WorkerConfig
from triptych.errors import InternalError, StartupError
from triptych.launch.http import http_server, run_server
from triptych.launch.stages import WorkerStages, build_stages
from triptych.messages import ChatEvent, ChatRequest, EncodedItem
from triptych.telemetry import Metrics

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Worker:
    """The services that HTTP sees: they exist before what they stand for is loaded."""

    state: ReadyState = "starting"
    stages: WorkerStages | None = None

    def readiness(self) -> ReadyState:
        if self.state == "ready" and self.stages is not None and not self.stages.alive:
            return "failed"
        return self.state

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        if self.stages is None or self.stages.chat is None:
            raise InternalError("asked for a chat before the stage was there")
        async with aclosing(self.stages.chat(request)) as events:
            async for event in events:
                yield event

    async def encode(self, request: ChatRequest) -> tuple[EncodedItem, ...]:
        if self.stages is None or self.stages.encode is None:
            raise InternalError("asked to encode before the stage was there")
        return await self.stages.encode.encode(request)


def run_worker(config: WorkerConfig, listener: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises:
        StartupError: the model cannot be loaded, or the engine process died.
    """
    asyncio.run(_run(config, listener))


async def _run(config: WorkerConfig, listener: socket.socket) -> None:
    worker = _Worker()
    metrics = Metrics(CollectorRegistry())
    has_chat, has_encode = config.role != "encode", config.role == "encode"
    app = worker_app(
        config.server,
        config.model.served_name,
        config.role,
        worker.readiness,
        metrics,
        worker if has_chat else None,
        worker if has_encode else None,
    )
    server = http_server(app, config.server)
    failure: list[StartupError] = []
    async with AsyncExitStack() as stack:
        watching = asyncio.create_task(_start_and_watch(config, metrics, worker, stack, server, failure))
        try:
            await run_server(server, listener)
        finally:
            worker.state = "draining"
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    if failure:
        raise failure[0]


async def _start_and_watch(
    config: WorkerConfig,
    metrics: Metrics,
    worker: _Worker,
    stack: AsyncExitStack,
    server: uvicorn.Server,
    failure: list[StartupError],
) -> None:
    """Load the stages, then see that the engine lives; whatever fails stops the server."""
    begun = time.monotonic()
    try:
        worker.stages = await build_stages(config, metrics, stack)
        worker.state = "ready"
        logger.info("%s worker ready after %.1f s", config.role, time.monotonic() - begun)
        await worker.stages.until_dead()
        failure.append(StartupError("the engine process died"))
    except StartupError as error:
        failure.append(error)
    worker.state = "failed"
    server.should_exit = True
