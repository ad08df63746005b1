"""One uvicorn server that ends in order: its signals stop it, and what was started around it can clean up."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Coroutine

import uvicorn
import uvloop
from starlette.applications import Starlette

from triptych.config import ServerConfig


def run_loop(main: Coroutine[None, None, None]) -> None:
    """Run `main` on a uvloop event loop: half the cost of a request's HTTP."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


def http_server(app: Starlette, config: ServerConfig) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=max(1, round(config.drain_seconds)),
            backlog=1024,
        )
    )


async def run_http(app: Starlette, config: ServerConfig, listener: socket.socket) -> None:
    await run_server(http_server(app, config), listener)


async def run_server(server: uvicorn.Server, listener: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM, then return (uvicorn alone would raise the signal again and kill us)."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    await server.serve(sockets=[listener])
