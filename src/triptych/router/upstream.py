"""HTTP to workers: one bounded connection pool, a deadline on every wait, and the client library's errors
turned into ours."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from triptych.errors import InternalError, WorkerUnavailable
from triptych.router.headers import end_to_end

CONNECT_SECONDS = 5.0
KEEP_ALIVE_SECONDS = 4.0
"""Shorter than any server's own, so that a request does not meet a connection that is being closed."""
SPARE_CONNECTIONS = 64
"""For health probes and model lists, beside one connection a request."""
LARGE_BODY_BYTES = 512 * 1024
MAX_REPLY_BYTES = 256 * 1024 * 1024
CHAT_PATH = "/v1/chat/completions"


class ConnectFailed(WorkerUnavailable):
    """No connection: the worker has seen nothing of the request."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A worker's response; `headers` are those that may be passed on. Valid inside its context only."""

    status: int
    content_type: str
    headers: tuple[tuple[str, str], ...]
    chunks: AsyncIterator[bytes]
    """Raises WorkerUnavailable if the worker dies before the end."""

    @property
    def is_event_stream(self) -> bool:
        return self.content_type.startswith("text/event-stream")

    async def read(self) -> bytes:
        """The whole body.

        Raises:
            WorkerUnavailable: the worker died before the end.
            InternalError: the body is absurdly large.
        """
        chunks: list[bytes] = []
        size = 0
        async for chunk in self.chunks:
            chunks.append(chunk)
            size += len(chunk)
            if size > MAX_REPLY_BYTES:
                raise InternalError(f"a worker's reply exceeds {MAX_REPLY_BYTES} bytes")
        return b"".join(chunks)


class Upstream:
    """Use inside `opened()`."""

    def __init__(self, max_requests: int) -> None:
        self._max_connections = max_requests + SPARE_CONNECTIONS
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        connector = aiohttp.TCPConnector(
            limit=self._max_connections, limit_per_host=0, keepalive_timeout=KEEP_ALIVE_SECONDS
        )
        async with aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
        ) as session:
            self._session = session
            try:
                yield
            finally:
                self._session = None

    @asynccontextmanager
    async def post(
        self, url: str, body: bytes, headers: Sequence[tuple[str, str]], total_seconds: float
    ) -> AsyncGenerator[Answer]:
        """A chat or encode request.

        Raises:
            ConnectFailed: nothing was sent.
            WorkerUnavailable: the worker died, or was silent for too long.
        """
        sent = [*headers, ("Content-Type", "application/json")]
        # Large bodies are written in pieces, so that other requests get their turn.
        data = body if len(body) < LARGE_BODY_BYTES else io.BytesIO(body)
        try:
            async with self._open_session().post(
                url + CHAT_PATH,
                data=data,
                headers=sent,
                timeout=_timeout(total_seconds),
                allow_redirects=False,
            ) as response:
                yield _answer(response)
        except aiohttp.ClientError as error:
            raise _ours(error) from error
        except TimeoutError as error:
            raise WorkerUnavailable("a worker did not answer in time") from error

    async def get(self, url: str, path: str, total_seconds: float) -> tuple[int, bytes]:
        """Status and body.

        Raises:
            WorkerUnavailable: no answer in time.
        """
        try:
            async with self._open_session().get(
                url + path, timeout=_timeout(total_seconds), allow_redirects=False
            ) as response:
                return response.status, await response.read()
        except aiohttp.ClientError as error:
            raise _ours(error) from error
        except TimeoutError as error:
            raise WorkerUnavailable("a worker did not answer in time") from error

    def _open_session(self) -> aiohttp.ClientSession:
        assert self._session is not None, "use inside opened()"
        return self._session


def _timeout(total_seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=total_seconds, sock_connect=CONNECT_SECONDS)


def _answer(response: aiohttp.ClientResponse) -> Answer:
    return Answer(
        status=response.status,
        content_type=response.headers.get("Content-Type", "application/octet-stream"),
        headers=end_to_end(response.headers.items()),
        chunks=_chunks(response),
    )


async def _chunks(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    try:
        async for chunk in response.content.iter_any():
            yield chunk
    except aiohttp.ClientError as error:
        raise _ours(error) from error
    except TimeoutError as error:
        raise WorkerUnavailable("a worker fell silent") from error


def _ours(error: aiohttp.ClientError) -> WorkerUnavailable:
    """The address stays out of the text: clients read it."""
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return ConnectFailed("a worker cannot be reached")
    return WorkerUnavailable("a worker died while it served this request")
