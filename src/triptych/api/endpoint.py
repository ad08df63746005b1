"""A POST endpoint whose every request ends in a reply, an error or the client's leaving, and is counted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope, Send

from triptych.api.admission import Admission
from triptych.api.exchange import ClientGone, Exchange
from triptych.api.status import problem
from triptych.config import ServerConfig
from triptych.errors import TriptychError
from triptych.telemetry import Metrics

OK = "ok"
CANCELLED = "cancelled"

Answer = Callable[[Exchange, bytes], Awaitable[str]]
"""Answers a body; returns "ok" or the error code of what was relayed. What it raises becomes the reply."""


class Endpoint:
    """An ASGI application. `gate` raises if requests are not to be taken now."""

    def __init__(
        self, role: str, config: ServerConfig, metrics: Metrics, gate: Callable[[], None], answer: Answer
    ) -> None:
        self._role = role
        self._max_body_bytes = config.max_body_bytes
        self._admission = Admission(config.max_requests)
        self._metrics = metrics
        self._gate = gate
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        code = CANCELLED
        try:
            code = await self._serve(Exchange(scope, receive, send))
        except ClientGone:
            pass
        finally:
            self._metrics.request_ended(self._role, code)

    async def _serve(self, exchange: Exchange) -> str:
        try:
            self._gate()
            with self._admission.place():
                body = await exchange.body(self._max_body_bytes)
                return await exchange.while_connected(self._answered(exchange, body))
        except TriptychError as error:
            return await _fail(exchange, error)

    async def _answered(self, exchange: Exchange, body: bytes) -> str:
        try:
            return await self._answer(exchange, body)
        except ClientGone:
            return CANCELLED
        except Exception as error:  # noqa: BLE001  every request ends in a reply; `problem` logs what is unknown
            try:
                return await _fail(exchange, error)
            except ClientGone:
                return CANCELLED


async def _fail(exchange: Exchange, error: Exception) -> str:
    found = problem(error)
    await exchange.fail(found)
    return found.code
