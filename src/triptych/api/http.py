"""The HTTP application of a worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from triptych.api.endpoint import OK, Endpoint
from triptych.api.exchange import EVENT_STREAM, JSON, REQUEST_ID, Exchange
from triptych.api.openai.encode_reply import encode_reply
from triptych.api.openai.parse import parse_chat, parse_encode
from triptych.api.openai.reply import Reply
from triptych.api.service import ChatService, EncodeService, Readiness
from triptych.api.surface import surface
from triptych.api.timings import response_timing
from triptych.config import Role, ServerConfig
from triptych.errors import ConfigError, DeadlineExceeded, WorkerUnavailable
from triptych.messages import ChatEvent, ChatRequest, Finished
from triptych.telemetry import RESPONSE, Metrics

LARGE_BODY_BYTES = 1024 * 1024
"""Bodies from here on are parsed in a thread, so that /health stays quick."""
GRACE_SECONDS = 5.0
"""Stages keep a request's deadline themselves; this long after it the front gives up on them."""
T = TypeVar("T")


def worker_app(
    config: ServerConfig,
    model_name: str,
    role: Role,
    readiness: Readiness,
    metrics: Metrics,
    chat: ChatService | None,
    encode: EncodeService | None,
) -> Starlette:
    """An encode worker answers `POST /v1/chat/completions` with references, every other role with text.

    Raises:
        ConfigError: the service that the role needs is missing.
    """
    if role == "encode":
        if encode is None:
            raise ConfigError("an encode worker needs an encode service")
        answer = EncodeAnswer(model_name, encode)
    else:
        if chat is None:
            raise ConfigError(f"a {role} worker needs a chat service")
        answer = ChatAnswer(model_name, chat, metrics)

    def gate() -> None:
        state = readiness()
        if state != "ready":
            raise WorkerUnavailable(f"this worker is {state}")

    async def models(request: Request) -> Response:
        return Response(models_json(model_name), media_type=JSON)

    async def health(request: Request) -> Response:
        state = readiness()
        body = msgspec.json.encode({"status": state, "role": role})
        return Response(body, status_code=200 if state == "ready" else 503, media_type=JSON)

    return surface(Endpoint(role, config, metrics, gate, answer), models, health, metrics)


def models_json(model_name: str) -> bytes:
    model = {"id": model_name, "object": "model", "created": 0, "owned_by": "triptych"}
    return msgspec.json.encode({"object": "list", "data": [model]})


@dataclass(frozen=True, slots=True)
class EncodeAnswer:
    model_name: str
    service: EncodeService

    async def __call__(self, exchange: Exchange, body: bytes) -> str:
        request = await _parsed(parse_encode, body, self.model_name, exchange.label)
        try:
            async with asyncio.timeout(_seconds(request)):
                items = await self.service.encode(request)
        except TimeoutError as error:
            raise DeadlineExceeded("the request's deadline passed") from error
        await exchange.reply(200, encode_reply(items), headers=_echo(request))
        return OK


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    model_name: str
    service: ChatService
    metrics: Metrics

    async def __call__(self, exchange: Exchange, body: bytes) -> str:
        started_seconds = time.perf_counter()
        parsed = await _parsed(parse_chat, body, self.model_name, exchange.label)
        reply = Reply(parsed.request, parsed.delivery)
        try:
            async with (
                asyncio.timeout(_seconds(parsed.request)),
                aclosing(self._events(parsed.request, started_seconds)) as events,
            ):
                if parsed.delivery.stream:
                    await _stream(exchange, reply, events)
                else:
                    await exchange.reply(200, await reply.completion(events), headers=_echo(parsed.request))
        except TimeoutError as error:
            raise DeadlineExceeded("the request's deadline passed") from error
        return OK

    async def _events(self, request: ChatRequest, started_seconds: float) -> AsyncGenerator[ChatEvent, None]:
        """The service's events, the last with the `response` stage added; closes the service's iterator."""
        events = self.service.chat(request)
        try:
            async for event in events:
                yield self._timed(event, request, started_seconds) if isinstance(event, Finished) else event
        finally:
            await _close(events)

    def _timed(self, finished: Finished, request: ChatRequest, started_seconds: float) -> Finished:
        if any(timing.stage == RESPONSE for timing in finished.timings):
            return finished
        wall_milliseconds = (time.perf_counter() - started_seconds) * 1000
        timing = response_timing(request, finished.timings, wall_milliseconds)
        self.metrics.observe((timing,))
        return msgspec.structs.replace(finished, timings=(*finished.timings, timing))


async def _stream(exchange: Exchange, reply: Reply, events: AsyncIterator[ChatEvent]) -> None:
    """Status and headers go out only with the first event: until then a failure has a status of its own."""
    async with aclosing(reply.chunks(events)) as chunks:
        async for chunk in chunks:
            if not exchange.started:
                await exchange.start(
                    200, EVENT_STREAM, (("cache-control", "no-cache"), *_echo(reply.request))
                )
            await exchange.send(chunk)
    await exchange.end()


async def _close(events: AsyncIterator[ChatEvent]) -> None:
    if isinstance(events, AsyncGenerator):
        await events.aclose()


async def _parsed(
    parse: Callable[[bytes, str, str | None], T], body: bytes, model: str, label: str | None
) -> T:
    if len(body) < LARGE_BODY_BYTES:
        return parse(body, model, label)
    return await asyncio.to_thread(parse, body, model, label)


def _seconds(request: ChatRequest) -> float:
    return request.deadline_ms / 1000 + GRACE_SECONDS


def _echo(request: ChatRequest) -> tuple[tuple[str, str], ...]:
    return ((REQUEST_ID, request.label),) if request.label else ()
