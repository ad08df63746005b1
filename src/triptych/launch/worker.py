"""A worker process: HTTP at once, its stages as soon as they are loaded."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from triptych.api.http import worker_app
from triptych.api.service import ReadyState
from triptych.config import WorkerConfig, available_cores, resolve
from triptych.errors import InternalError, StartupError
from triptych.launch.http import http_server, run_loop, run_server
from triptych.launch.memory import settle_memory
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


def run_worker(
    config: WorkerConfig, listener: socket.socket, on_ready: Callable[[], None] = lambda: None
) -> None:
    """Serve until SIGINT or SIGTERM; `on_ready` is called once everything is loaded.

    Raises:
        StartupError: the model cannot be loaded, or the engine process died.
    """
    run_loop(_run(resolve(config, available_cores()), listener, on_ready))


async def _run(config: WorkerConfig, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    worker = _Worker()
    metrics = Metrics(CollectorRegistry(), config.role)
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

    def stop(_: asyncio.Task[None]) -> None:
        worker.state = "failed"
        server.should_exit = True

    async with AsyncExitStack() as stack:
        watching = asyncio.create_task(_start_and_watch(config, metrics, worker, stack, on_ready))
        watching.add_done_callback(stop)
        await run_server(server, listener)
        worker.state = "draining"
        watching.cancel()
        (outcome,) = await asyncio.gather(watching, return_exceptions=True)
        if isinstance(outcome, Exception):
            raise outcome


async def _start_and_watch(
    config: WorkerConfig,
    metrics: Metrics,
    worker: _Worker,
    stack: AsyncExitStack,
    on_ready: Callable[[], None],
) -> None:
    """Load the stages, then see that the engine lives; ends only by raising what is wrong."""
    begun = time.monotonic()
    worker.stages = await build_stages(config, metrics, stack)
    settle_memory()
    worker.state = "ready"
    logger.info("%s worker ready after %.1f s", config.role, time.monotonic() - begun)
    on_ready()
    await worker.stages.until_dead()
    raise StartupError("the engine process died")
