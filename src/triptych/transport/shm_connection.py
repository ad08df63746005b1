"""A consumer's connection to one producer: many fetches at a time over one socket, one read-only mapping."""

from __future__ import annotations

import itertools
import os
import select
import socket
import threading
import time
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from triptych.errors import DeadlineExceeded, EmbeddingUnavailable, error_from_code
from triptych.messages import TensorRef
from triptych.transport import handshake
from triptych.transport.frames import (
    MAX_FRAME_BYTES,
    Challenge,
    Done,
    Fetch,
    FrameError,
    FromConsumer,
    FromProducer,
    Granted,
    Hello,
    Refused,
    Release,
    Welcome,
    decode_from_producer,
    encode,
)
from triptych.transport.slab import Slab, map_slab
from triptych.transport.slots import claim_of
from triptych.transport.tensors import Bytes

_DONE_SECONDS: Final = 1.0
"""How long a frame that nobody waits for may take to fit into the socket's buffer."""
_JOIN_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Borrowed:
    """The producer's own memory, read-only, [size] uint8; stays as it is while borrowed."""

    memory: Bytes
    note: bytes
    waited_seconds: float


class ShmConnection:
    """Made by `dial`. Thread-safe. Once `broken` it stays so; socket and mapping go when the last fetch ends,
    because a socket that closes tells the producer that nobody reads any more.
    """

    def __init__(self, connection: socket.socket, slab: Slab) -> None:
        self._socket = connection
        self._slab = slab
        self._lock = threading.Lock()
        self._answers: dict[int, Future[Granted]] = {}
        self._requests = itertools.count(1)
        self._num_active = 0
        self._broken: str | None = None
        self._receiver = threading.Thread(target=self._receive, name="shm-receiver", daemon=True)
        self._receiver.start()

    @property
    def broken(self) -> bool:
        return self._broken is not None

    @contextmanager
    def borrow(self, ref: TensorRef, deadline_at: float) -> Generator[Borrowed]:
        """Pin a tensor when it is ready, and unpin it at the end; `deadline_at` by `time.monotonic`.

        Raises:
            EmbeddingUnavailable, DeadlineExceeded, TriptychError: see `Consumer.fetch`.
        """
        request, answer = self._begin()
        try:
            granted = self._ask(request, answer, ref, deadline_at)
            if granted.offset + granted.size_bytes > self._slab.memory.nbytes:
                raise EmbeddingUnavailable(f"{ref.key}: its producer names memory that it does not have")
            memory = self._slab.memory[granted.offset : granted.offset + granted.size_bytes]
            yield Borrowed(memory, granted.note, granted.waited_ms / 1000)
        finally:
            # Also after a timeout: a grant may be under way.
            if not self.broken and not self._send(Done(request=request), time.monotonic() + _DONE_SECONDS):
                self._break("the producer takes no frames")
            self._end(request)

    def release(self, ref: TensorRef, deadline_at: float) -> None:
        """Free the slot of a reference, if it still is. Never raises."""
        with self._lock:
            if self._broken is not None:
                return
            self._num_active += 1
        try:
            self._send(Release(claim=claim_of(ref)), deadline_at)
        finally:
            self._end(None)

    def close(self) -> None:
        """Fetches under way end with EmbeddingUnavailable. Can be called twice."""
        self._break("this consumer is closed")
        self._receiver.join(_JOIN_SECONDS)

    def _begin(self) -> tuple[int, Future[Granted]]:
        request, answer = next(self._requests), Future[Granted]()
        with self._lock:
            if self._broken is not None:
                raise EmbeddingUnavailable(self._broken)
            self._answers[request] = answer
            self._num_active += 1
        return request, answer

    def _end(self, request: int | None) -> None:
        with self._lock:
            if request is not None:
                self._answers.pop(request, None)
            self._num_active -= 1
            self._close_if_unused()

    def _ask(self, request: int, answer: Future[Granted], ref: TensorRef, deadline_at: float) -> Granted:
        remaining_ms = max(0, int(1000 * (deadline_at - time.monotonic())))
        fetch = Fetch(request=request, claim=claim_of(ref), remaining_ms=remaining_ms)
        if not self._send(fetch, deadline_at):
            raise DeadlineExceeded(f"{ref.key}: its producer takes no requests")
        try:
            return answer.result(max(0.0, deadline_at - time.monotonic()))
        except TimeoutError as error:
            raise DeadlineExceeded(f"{ref.key} was not ready in time, or its producer is frozen") from error

    def _send(self, frame: FromConsumer, deadline_at: float) -> bool:
        """Whole or not at all, as packets are; False: no room until `deadline_at`. A dead peer shows in
        `_receive`, not here."""
        data = encode(frame)
        while True:
            try:
                self._socket.send(data, socket.MSG_DONTWAIT)
            except BlockingIOError:
                if not _writable(self._socket, deadline_at):
                    return False
            except OSError:
                return True
            else:
                return True

    def _receive(self) -> None:
        reason = "its producer is gone"
        try:
            while data := self._socket.recv(MAX_FRAME_BYTES):
                self._on_frame(decode_from_producer(data))
        except FrameError as error:
            reason = f"its producer does not speak our protocol: {error}"
        except OSError:
            pass
        self._break(reason)

    def _on_frame(self, frame: FromProducer) -> None:
        if not isinstance(frame, Granted | Refused):
            raise FrameError(f"unexpected {type(frame).__name__}")
        with self._lock:
            answer = self._answers.pop(frame.request, None)
        if answer is None:  # it gave up waiting, and says Done itself
            return
        if isinstance(frame, Granted):
            answer.set_result(frame)
        else:
            answer.set_exception(error_from_code(frame.code, frame.message))

    def _break(self, reason: str) -> None:
        with self._lock:
            if self._broken is not None:
                return
            self._broken = reason
            answers = list(self._answers.values())
            self._answers.clear()
            self._close_if_unused()
        for answer in answers:
            answer.set_exception(EmbeddingUnavailable(reason))

    def _close_if_unused(self) -> None:
        if self._broken is None or self._num_active:
            return
        with suppress(OSError):  # the peer hung up first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._slab.close()


def dial(address: str, token: bytes, deadline_at: float) -> ShmConnection:
    """Connect to the producer at an abstract address and map its slab.

    Raises:
        EmbeddingUnavailable: nobody is there, it is not one of ours, or it hung up.
        DeadlineExceeded: it does not answer.
    """
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise EmbeddingUnavailable(f"no socket to reach {address}: {error.strerror}") from error
    try:
        _limit(connection, deadline_at)
        connection.connect("\0" + address)
        slab = _shake_hands(connection, token, deadline_at)
        connection.settimeout(None)
    except TimeoutError as error:
        connection.close()
        raise DeadlineExceeded(f"the producer at {address} does not answer") from error
    except (OSError, FrameError) as error:
        connection.close()
        raise EmbeddingUnavailable(f"no producer at {address}: {error}") from error
    except BaseException:
        connection.close()
        raise
    return ShmConnection(connection, slab)


def _shake_hands(connection: socket.socket, token: bytes, deadline_at: float) -> Slab:
    if not handshake.is_same_user(connection):
        raise FrameError("it belongs to another user")
    _limit(connection, deadline_at)
    challenge = decode_from_producer(_received(connection.recv(MAX_FRAME_BYTES)))
    if not isinstance(challenge, Challenge):
        raise FrameError("it does not begin with a challenge")
    nonce = handshake.new_nonce()
    proof = handshake.proof(token, "consumer", challenge.nonce)
    connection.send(encode(Hello(proof=proof, nonce=nonce)))
    _limit(connection, deadline_at)
    data, fds, _, _ = socket.recv_fds(connection, MAX_FRAME_BYTES, 1)
    try:
        welcome = decode_from_producer(_received(data))
        if not isinstance(welcome, Welcome) or len(fds) != 1:
            raise FrameError("it does not send its memory")
        if not handshake.proves(welcome.proof, token, "producer", nonce):
            raise FrameError("its token is wrong")
        return map_slab(fds[0], welcome.slab_bytes)
    finally:
        for fd in fds:
            os.close(fd)


def _received(data: bytes) -> bytes:
    if not data:
        raise FrameError("it hung up: another token, or too many readers")
    return data


def _limit(connection: socket.socket, deadline_at: float) -> None:
    remaining = deadline_at - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    connection.settimeout(remaining)


def _writable(connection: socket.socket, deadline_at: float) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLOUT)
    return bool(poll.poll(max(0.0, 1000 * (deadline_at - time.monotonic()))))
