"""A chat request's way through the workers: media to an encode worker, references to prefill-decode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from triptych.errors import WorkerUnavailable
from triptych.messages import DEFAULT_DEADLINE_MS
from triptych.router.members import Members, Worker
from triptych.router.rewrite import MediaRequest, split
from triptych.router.upstream import Answer, ConnectFailed, Upstream

CHAT_SECONDS = DEFAULT_DEADLINE_MS / 1000 + 10
"""Workers keep the request's deadline; this is for workers that cannot."""
MODELS_SECONDS = 5.0
LARGE_BODY_BYTES = 1024 * 1024
"""Bodies from here on are rewritten in a thread, so that other requests get their turn."""

MAX_ATTEMPTS = 2
T = TypeVar("T")
HeaderPairs = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Refused:
    """An encode worker's error, to be passed on as it is."""

    status: int
    content_type: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Proxy:
    """Retries only what no worker can have begun to answer, and encoding, which may safely run twice."""

    def __init__(self, members: Members, upstream: Upstream, encode_timeout_seconds: float) -> None:
        self._members = members
        self._upstream = upstream
        self._encode_timeout_seconds = encode_timeout_seconds

    @asynccontextmanager
    async def chat(self, body: bytes, headers: HeaderPairs) -> AsyncGenerator[Answer | Refused]:
        """The answer to a client's request. Leaving the context early cancels it at the worker.

        Raises:
            InvalidRequest: the body is no JSON object.
            WorkerUnavailable: a role has no live worker, or one died; also from the answer's chunks.
        """
        is_large = len(body) >= LARGE_BODY_BYTES
        request = await _rewritten(is_large, partial(split, body))
        if request is not None:
            encoded = await self._encode(request, is_large, headers)
            if isinstance(encoded, Refused):
                yield encoded
                return
            body = request.metadata_only_body(encoded)
            request = None  # its media are not needed while the answer streams
        async with self._prefill_decode(body, headers) as answer:
            yield answer

    async def models(self) -> tuple[int, bytes]:
        """Status and body of `/v1/models` of some prefill-decode worker.

        Raises:
            WorkerUnavailable: there is none.
        """
        with self._members.using("prefill-decode") as worker:
            return await self._upstream.get(worker.url, "/v1/models", MODELS_SECONDS)

    async def _encode(self, request: MediaRequest, is_large: bool, headers: HeaderPairs) -> bytes | Refused:
        body = await _rewritten(is_large, request.encode_body)
        failed: list[Worker] = []
        while True:
            with self._members.using("encode", avoid=failed) as worker:
                try:
                    return await self._encode_at(worker, body, headers)
                except WorkerUnavailable as error:
                    self._note_failure(worker, error, failed)

    async def _encode_at(self, worker: Worker, body: bytes, headers: HeaderPairs) -> bytes | Refused:
        async with self._upstream.post(worker.url, body, headers, self._encode_timeout_seconds) as answer:
            reply = await answer.read()
            if answer.status == 200:
                return reply
            return Refused(answer.status, answer.content_type, answer.headers, reply)

    @asynccontextmanager
    async def _prefill_decode(self, body: bytes, headers: HeaderPairs) -> AsyncGenerator[Answer]:
        failed: list[Worker] = []
        while True:
            async with AsyncExitStack() as stack:
                worker = stack.enter_context(self._members.using("prefill-decode", avoid=failed))
                post = self._upstream.post(worker.url, body, headers, CHAT_SECONDS)
                try:
                    answer = await stack.enter_async_context(post)
                except ConnectFailed as error:
                    self._note_failure(worker, error, failed)
                    continue
                yield answer
                return

    def _note_failure(self, worker: Worker, error: WorkerUnavailable, failed: list[Worker]) -> None:
        """A worker that takes no connections gets no requests until a probe finds it well again.

        Raises:
            WorkerUnavailable: `error`, if it was the last attempt.
        """
        if isinstance(error, ConnectFailed):
            worker.healthy = False
        failed.append(worker)
        if len(failed) == MAX_ATTEMPTS:
            raise error


async def _rewritten(is_large: bool, rewrite: Callable[[], T]) -> T:
    return await asyncio.to_thread(rewrite) if is_large else rewrite()
