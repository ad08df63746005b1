"""One HTTP request and its response over ASGI: bounded body, cancel on disconnect, errors in either phase."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TypeVar

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from triptych.api.openai.reply import failure_events
from triptych.api.status import Problem
from triptych.errors import BodyTooLarge, InvalidRequest, WorkerUnavailable

JSON = "application/json"
EVENT_STREAM = "text/event-stream; charset=utf-8"
BODY_CHUNK_SECONDS = 30.0
"""How long the next piece of a body may take."""
SEND_SECONDS = 60.0
"""How long a client may leave a full socket unread."""
REQUEST_ID = "x-request-id"
MAX_LABEL_CHARS = 256
T = TypeVar("T")


class ClientGone(Exception):
    """The client closed the connection: nobody is left to answer."""


class Exchange:
    """Not thread-safe. After `while_connected` began, nothing else may read from the client."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.headers = Headers(scope=scope)
        self.started = False
        """Whether the status has been sent."""

    @property
    def label(self) -> str | None:
        """The client's own id of this request, only echoed.

        Raises:
            InvalidRequest: too long to be an id.
        """
        label = self.headers.get(REQUEST_ID)
        if label is not None and len(label) > MAX_LABEL_CHARS:
            raise InvalidRequest(f"the header {REQUEST_ID} has more than {MAX_LABEL_CHARS} characters")
        return label

    async def body(self, max_bytes: int) -> bytes:
        """The whole body.

        Raises:
            BodyTooLarge: before memory is taken, if its length is announced.
            InvalidRequest: the client stopped sending.
            ClientGone: the client closed the connection.
        """
        too_large = BodyTooLarge(f"the body must not exceed {max_bytes} bytes")
        announced = self.headers.get("content-length", "")
        if announced.isdigit() and int(announced) > max_bytes:
            raise too_large
        chunks: list[bytes] = []
        room = max_bytes
        while True:
            message = await self._next_chunk()
            chunk: bytes = message.get("body", b"")
            room -= len(chunk)
            if room < 0:
                raise too_large
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)

    async def _next_chunk(self) -> Message:
        try:
            async with asyncio.timeout(BODY_CHUNK_SECONDS):
                message = await self._receive()
        except TimeoutError as error:
            raise InvalidRequest("the body stopped arriving") from error
        if message["type"] == "http.disconnect":
            raise ClientGone
        return message

    async def while_connected(self, work: Coroutine[object, object, T]) -> T:
        """Run `work`, which answers its own errors. If the client leaves, cancel it and wait for its end.

        Raises:
            ClientGone: the client left.
            WorkerUnavailable: `work` was cancelled although the client is still there.
        """
        async with asyncio.TaskGroup() as group:
            running = group.create_task(work)
            watching = group.create_task(self._disconnected())
            await asyncio.wait((running, watching), return_when=asyncio.FIRST_COMPLETED)
            gone = not running.done()
            running.cancel()
            watching.cancel()
        if gone:
            raise ClientGone
        if running.cancelled():
            raise WorkerUnavailable("the request was cut off by the server")
        return running.result()

    async def _disconnected(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def start(self, status: int, content_type: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        """Send status and headers; then `send` and `end`."""
        self.started = True
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        raw.append((b"content-type", content_type.encode("latin-1")))
        await self._deliver({"type": "http.response.start", "status": status, "headers": raw})

    async def send(self, chunk: bytes) -> None:
        await self._deliver({"type": "http.response.body", "body": chunk, "more_body": True})

    async def end(self, chunk: bytes = b"") -> None:
        await self._deliver({"type": "http.response.body", "body": chunk, "more_body": False})

    async def reply(
        self, status: int, body: bytes, content_type: str = JSON, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        """A whole response."""
        await self.start(status, content_type, (*headers, ("content-length", str(len(body)))))
        await self.end(body)

    async def fail(self, problem: Problem) -> None:
        """An error response, or the last events of a stream that has begun."""
        if self.started:
            await self.end(failure_events(problem))
            return
        await self.reply(problem.status.http, problem.body(), headers=problem.headers)

    async def _deliver(self, message: Message) -> None:
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self._send(message)
        except (TimeoutError, OSError) as error:
            raise ClientGone from error
        except RuntimeError as error:
            # uvloop's word for a connection that closed between two writes, before anybody was told.
            raise ClientGone from error
