"""The HTTP application of a router: the surface of a worker, served by workers behind it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from triptych.api.endpoint import OK, Endpoint
from triptych.api.exchange import JSON, REQUEST_ID, Exchange
from triptych.api.status import problem
from triptych.api.surface import surface
from triptych.config import RouterConfig
from triptych.errors import WorkerUnavailable, all_error_classes
from triptych.router.events import whole_events
from triptych.router.headers import end_to_end
from triptych.router.health import probe_all, watch
from triptych.router.members import Members
from triptych.router.proxy import Proxy, Refused
from triptych.router.upstream import Answer, Upstream
from triptych.telemetry import Metrics

KNOWN_CODES = frozenset(cls.code for cls in all_error_classes())


def router_app(config: RouterConfig, metrics: Metrics) -> Starlette:
    """Connections to workers and health probes live from start-up to shutdown of the application."""
    members = Members(config.encode_urls, config.prefill_decode_urls)
    upstream = Upstream(config.server.max_requests)
    proxy = Proxy(members, upstream, config.encode_timeout_seconds)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        async with upstream.opened(), asyncio.TaskGroup() as group:
            await probe_all(members, upstream, config.health_timeout_seconds)
            watching = group.create_task(
                watch(members, upstream, config.health_interval_seconds, config.health_timeout_seconds)
            )
            try:
                yield
            finally:
                watching.cancel()

    async def models(request: Request) -> Response:
        try:
            status, body = await proxy.models()
        except WorkerUnavailable as error:
            found = problem(error)
            return Response(found.body(), found.status.http, headers=dict(found.headers), media_type=JSON)
        return Response(body, status_code=status, media_type=JSON)

    async def health(request: Request) -> Response:
        missing = members.missing_roles()
        body = {"status": "unavailable" if missing else "ready", "missing": missing}
        return Response(msgspec.json.encode(body), status_code=503 if missing else 200, media_type=JSON)

    endpoint = Endpoint("router", config.server, metrics, lambda: None, RouterAnswer(proxy))
    return surface(endpoint, models, health, metrics, lifespan)


@dataclass(frozen=True, slots=True)
class RouterAnswer:
    proxy: Proxy

    async def __call__(self, exchange: Exchange, body: bytes) -> str:
        async with self.proxy.chat(body, _forwarded(exchange)) as answer:
            if isinstance(answer, Refused):
                await exchange.reply(answer.status, answer.body, answer.content_type, answer.headers)
                return _code(answer.status, answer.body)
            if answer.is_event_stream:
                await _stream(exchange, answer)
                return OK
            whole = await answer.read()
            await exchange.reply(answer.status, whole, answer.content_type, answer.headers)
            return _code(answer.status, whole)


async def _stream(exchange: Exchange, answer: Answer) -> None:
    """Headers go out with the first event: a worker that dies before it is a plain 503."""
    async with aclosing(whole_events(answer.chunks)) as events:
        async for event in events:
            if not exchange.started:
                await exchange.start(answer.status, answer.content_type, answer.headers)
            await exchange.send(event)
    if not exchange.started:
        raise WorkerUnavailable("a worker ended its reply before the first event")
    await exchange.end()


def _forwarded(exchange: Exchange) -> tuple[tuple[str, str], ...]:
    """The client's headers, with a request id that is the same at every worker.

    Raises:
        InvalidRequest: the client's own id is too long.
    """
    headers = end_to_end(exchange.headers.items())
    if exchange.label is not None:
        return headers
    return (*headers, (REQUEST_ID, secrets.token_hex(16)))


class _ErrorCode(msgspec.Struct):
    code: str


class _ErrorBody(msgspec.Struct):
    error: _ErrorCode


def _code(status: int, body: bytes) -> str:
    """What to count a relayed reply as: a known error code, or "http_<status>"."""
    if status == 200:
        return OK
    try:
        code = msgspec.json.decode(body, type=_ErrorBody).error.code
    except (msgspec.DecodeError, RecursionError):
        code = ""
    return code if code in KNOWN_CODES else f"http_{status}"
