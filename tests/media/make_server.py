"""A loopback HTTP server whose every byte the test decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

Respond = Callable[[str, asyncio.StreamWriter], Awaitable[None]]
"""Answers a request for a path by writing to the connection, which is closed afterwards."""


@dataclass
class Server:
    port: int
    host: str = "127.0.0.1"
    paths: list[str] = field(default_factory=list[str])
    """Of all requests so far."""
    num_open: int = 0
    """Connections that the client has not closed yet."""
    num_connections: int = 0

    def url(self, path: str, host: str | None = None) -> str:
        return f"http://{host or self.host}:{self.port}{path}"


@asynccontextmanager
async def serve(respond: Respond, host: str = "127.0.0.1") -> AsyncGenerator[Server]:
    server = Server(0, host)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.num_connections += 1
        server.num_open += 1
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ", 2)[1].decode()
            server.paths.append(path)
            answering = asyncio.ensure_future(respond(path, writer))
            leaving = asyncio.ensure_future(reader.read())
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            server.num_open -= 1
            writer.close()

    listener = await asyncio.start_server(connected, host, 0)
    server.port = listener.sockets[0].getsockname()[1]
    async with listener:
        yield server


def head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode()


def answer(status: int, body: bytes = b"", **headers: str) -> bytes:
    """A whole reply; `Content_Type` stands for Content-Type."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return head(status, {"Content-Length": str(len(body)), "Connection": "close", **named}) + body


def always(reply: bytes) -> Respond:
    async def respond(path: str, writer: asyncio.StreamWriter) -> None:
        writer.write(reply)
        await writer.drain()

    return respond


def in_turn(replies: Sequence[bytes]) -> Respond:
    """The n-th request gets the n-th reply."""
    left = iter(replies)

    async def respond(path: str, writer: asyncio.StreamWriter) -> None:
        writer.write(next(left))
        await writer.drain()

    return respond


def by_path(replies: dict[str, bytes]) -> Respond:
    async def respond(path: str, writer: asyncio.StreamWriter) -> None:
        writer.write(replies[path])
        await writer.drain()

    return respond


async def until(condition: Callable[[], bool]) -> None:
    """Wait, at most five seconds, until something that other tasks do has happened."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 -- what is waited for knows no events
            await asyncio.sleep(0.002)
