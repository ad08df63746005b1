"""The front's end of the engine process link. One event loop; no tasks, no threads."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from triptych.errors import DeadlineExceeded, QueueFull, TryLater, WorkerUnavailable, error_from_code
from triptych.language.link import FrameSplitter, frame
from triptych.messages import (
    Cancel,
    EngineInbox,
    EngineOutbox,
    EngineReady,
    Failed,
    GenerateRequest,
    Release,
    StepOutput,
    TensorRef,
    TokenEvent,
)

_GRACE_SECONDS: Final = 5.0
"""The engine ends a request at its deadline; one that says nothing for this much longer is stuck."""
_MAX_UNSENT_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """As of the engine's last step; `kv_usage` is 0 to 1."""

    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0


class EngineClient:
    """Generates through an engine process at the other end of `sock`.

    `on_step` is called with every `StepOutput`, on the event loop. When the engine dies, requests in flight
    and all later ones raise `WorkerUnavailable`.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_step: Callable[[StepOutput], None] | None = None,
        max_requests: int = 4096,
    ) -> None:
        self._sock = sock
        self._on_step = on_step
        self._max_requests = max_requests
        self._streams: dict[str, asyncio.Queue[TokenEvent | Failed | None]] = {}
        self._load = EngineLoad()
        self._ready: EngineReady | Failed | None = None
        self._changed = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._dead = False

    @property
    def load(self) -> EngineLoad:
        return self._load

    @property
    def alive(self) -> bool:
        """The engine has said that it is ready, and its end of the link is open."""
        return isinstance(self._ready, EngineReady) and not self._dead

    async def ready(self, deadline_seconds: float) -> EngineReady:
        """Wait for the engine to load its model; call first, once.

        Raises:
            StartupError: the engine says that it cannot start.
            WorkerUnavailable: it died, or is not ready in time.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(deadline_seconds):
                self._transport, _ = await loop.create_unix_connection(lambda: _Link(self), sock=self._sock)
                await self._changed.wait()
        except TimeoutError as error:
            self.close()
            raise WorkerUnavailable(f"the engine was not ready within {deadline_seconds:.0f} s") from error
        match self._ready:
            case EngineReady():
                return self._ready
            case Failed(code=code, message=message):
                raise error_from_code(code, message)
            case None:
                raise WorkerUnavailable("the engine process died while starting")

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        """Tokens, up to the one with a finish reason. Closing the generator cancels the request.

        Raises:
            TriptychError: what the engine reported.
            WorkerUnavailable: the engine is dead, or died meanwhile.
            DeadlineExceeded: it reported nothing until well after the request's deadline.
            QueueFull: too many requests are in flight here.
        """
        deadline = time.monotonic() + request.deadline_ms / 1000 + _GRACE_SECONDS
        try:
            stream = self._open(request)
        except TryLater:
            self.release(tuple(item.ref.tensor for item in request.items))
            raise
        over = False
        try:
            while not over:
                event = await _next(stream, deadline)
                over = not isinstance(event, TokenEvent) or event.finish_reason is not None
                yield _token_of(event)
        finally:
            del self._streams[request.request_id]
            if not over:
                self._send(Cancel(request_id=request.request_id))

    def release(self, refs: tuple[TensorRef, ...]) -> None:
        """Give back references of a request that is not generated; never raises."""
        if refs:
            self._send(Release(refs=refs))

    def close(self) -> None:
        """Close the link: the engine stops. Can be called twice."""
        if self._sock.fileno() >= 0:
            # At once, not in the loop's next turn: the caller may wait for the process without yielding.
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
        if self._transport is None:
            self._sock.close()
        else:
            self._transport.abort()
        self.lost()

    def lost(self) -> None:
        """The link is down: end everything that waits for it."""
        if not self._dead:
            self._dead = True
            self._load = EngineLoad()
            self._changed.set()
            for stream in self._streams.values():
                stream.put_nowait(None)

    def receive(self, message: EngineOutbox) -> None:
        """Hand one message of the engine to whom it concerns."""
        match message:
            case EngineReady() | Failed():
                self._ready = message
                self._changed.set()
            case StepOutput():
                self._load = EngineLoad(message.num_running, message.num_waiting, message.kv_usage)
                for event in message.events:
                    stream = self._streams.get(event.request_id)
                    if stream is not None:
                        stream.put_nowait(event)
                if self._on_step is not None:
                    self._on_step(message)

    def _open(self, request: GenerateRequest) -> asyncio.Queue[TokenEvent | Failed | None]:
        if self._dead or not isinstance(self._ready, EngineReady):
            raise WorkerUnavailable("the engine process is not running")
        if len(self._streams) >= self._max_requests:
            raise QueueFull(f"{len(self._streams)} requests are in flight")
        assert request.request_id not in self._streams
        room = max(0, self._ready.max_context_tokens - len(request.token_ids))
        max_tokens = min(room, request.sampling.max_tokens or room)
        # Every token, a failure, and the end of the link: putting never finds it full.
        stream: asyncio.Queue[TokenEvent | Failed | None] = asyncio.Queue(max_tokens + 2)
        self._send(request)
        self._streams[request.request_id] = stream
        return stream

    def _send(self, message: EngineInbox) -> None:
        if self._transport is None or self._dead:
            return
        if (
            isinstance(message, GenerateRequest)
            and self._transport.get_write_buffer_size() > _MAX_UNSENT_BYTES
        ):
            raise QueueFull("the engine does not keep up with its requests")
        self._transport.write(frame(message))


class _Link(asyncio.Protocol):
    """Bytes of the socket → messages for the client."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._splitter = FrameSplitter()
        self._decoder = msgspec.msgpack.Decoder(EngineOutbox)

    def data_received(self, data: bytes) -> None:
        for body in self._splitter.feed(data):
            self._client.receive(self._decoder.decode(body))

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.lost()


async def _next(
    stream: asyncio.Queue[TokenEvent | Failed | None], deadline: float
) -> TokenEvent | Failed | None:
    if not stream.empty():
        return stream.get_nowait()
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            return await stream.get()
    except TimeoutError as error:
        raise DeadlineExceeded("the engine does not answer") from error


def _token_of(event: TokenEvent | Failed | None) -> TokenEvent:
    match event:
        case TokenEvent():
            return event
        case Failed(code=code, message=message):
            raise error_from_code(code, message)
        case None:
            raise WorkerUnavailable("the engine process died while serving this request")
