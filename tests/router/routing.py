"""Routers and dead addresses for tests."""

from __future__ import annotations

import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from tests.api.serving import new_metrics, serving
from triptych.api.route import router_app
from triptych.config import RouterConfig, ServerConfig
from triptych.telemetry import Metrics


@contextmanager
def routing(
    encode_urls: Sequence[str],
    prefill_decode_urls: Sequence[str],
    server: ServerConfig | None = None,
    metrics: Metrics | None = None,
    health_interval_seconds: float = 3600.0,
    encode_timeout_seconds: float = 20.0,
) -> Generator[str]:
    """A router's URL. Workers are probed at start-up and then, unless told otherwise, no more."""
    config = RouterConfig(
        encode_urls=tuple(encode_urls),
        prefill_decode_urls=tuple(prefill_decode_urls),
        server=server or ServerConfig(),
        health_interval_seconds=health_interval_seconds,
        health_timeout_seconds=10.0,
        encode_timeout_seconds=encode_timeout_seconds,
    )
    with serving(router_app(config, metrics or new_metrics())) as url:
        yield url


def dead_url() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"
