"""The router process: HTTP only, no torch."""

from __future__ import annotations

import socket

from prometheus_client import CollectorRegistry

from triptych.api.route import router_app
from triptych.config import RouterConfig
from triptych.launch.http import run_http, run_loop
from triptych.telemetry import Metrics


def run_router(config: RouterConfig, listener: socket.socket) -> None:
    """Route until SIGINT or SIGTERM."""
    app = router_app(config, Metrics(CollectorRegistry(), "router"))
    run_loop(run_http(app, config.server, listener))
