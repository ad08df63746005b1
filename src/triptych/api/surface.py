"""The routes that workers and the router share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import prometheus_client
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Lifespan

from triptych.api.endpoint import Endpoint
from triptych.api.exchange import JSON
from triptych.api.status import Problem, Status
from triptych.telemetry import Metrics

Page = Callable[[Request], Awaitable[Response]]


def surface(
    completions: Endpoint,
    models: Page,
    health: Page,
    metrics: Metrics,
    lifespan: Lifespan[Starlette] | None = None,
) -> Starlette:
    """`POST /v1/chat/completions`, `GET /v1/models`, `GET /health`, `GET /metrics`."""

    async def exposition(request: Request) -> Response:
        text = prometheus_client.generate_latest(metrics.registry)
        return Response(text, media_type=prometheus_client.CONTENT_TYPE_LATEST)

    routes = [
        Route("/v1/chat/completions", completions, methods=["POST"]),
        Route("/v1/models", models, methods=["GET"]),
        Route("/health", health, methods=["GET"]),
        Route("/metrics", exposition, methods=["GET"]),
    ]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _no_such_route})


async def _no_such_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    code = {404: "not_found", 405: "method_not_allowed"}.get(status, "invalid_request")
    row = Status(status, "UNIMPLEMENTED", "invalid_request_error")
    found = Problem(row, code, f"there is no {request.method} {request.url.path} here")
    return Response(found.body(), status_code=status, media_type=JSON)
