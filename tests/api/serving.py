"""A real server on a loopback port, in a thread of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from triptych.api.http import worker_app
from triptych.api.service import ChatService, EncodeService, ReadyState
from triptych.config import Role, ServerConfig
from triptych.telemetry import Metrics

MODEL = "tiny"
WAIT_SECONDS = 20.0


@contextmanager
def serving(app: Starlette) -> Generator[str]:
    """The base URL. Connections made before start-up has finished wait in the listener."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, log_level="error", ws="none", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()


def new_metrics() -> Metrics:
    return Metrics(CollectorRegistry())


def chat_app(
    service: ChatService,
    config: ServerConfig | None = None,
    metrics: Metrics | None = None,
    state: ReadyState = "ready",
    role: Role = "prefill-decode",
) -> Starlette:
    return worker_app(
        config or ServerConfig(), MODEL, role, lambda: state, metrics or new_metrics(), service, None
    )


def encode_app(
    service: EncodeService,
    config: ServerConfig | None = None,
    metrics: Metrics | None = None,
    state: ReadyState = "ready",
) -> Starlette:
    return worker_app(
        config or ServerConfig(), MODEL, "encode", lambda: state, metrics or new_metrics(), None, service
    )
