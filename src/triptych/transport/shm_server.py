"""The producer's end of shared-memory connections: one thread that serves every reader of one pool."""

from __future__ import annotations

import errno
import logging
import os
import selectors
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, assert_never

from triptych.errors import DeadlineExceeded, EmbeddingUnavailable, QueueFull
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
    decode_from_consumer,
    encode,
)
from triptych.transport.pool import CLOSE_SECONDS, SlotPool
from triptych.transport.slab import Slab
from triptych.transport.slots import Clock, Slot, SlotState

log = logging.getLogger(__name__)

MAX_READERS: Final = 256
MAX_FETCHES_PER_READER: Final = 256
"""Waiting and pinned together; more are refused."""
MAX_PINS_PER_READER: Final = 8
"""What one frozen reader can keep out of use. Further ready slots wait for one of these to be done."""
_MAX_SLEEP_SECONDS: Final = 1.0


@dataclass(slots=True)
class _Waiting:
    fetch: Fetch
    since: float

    @property
    def deadline_at(self) -> float:
        return self.since + self.fetch.remaining_ms / 1000


@dataclass(slots=True, eq=False)
class _Reader:
    """One connection. `muted`: it broke the protocol; it is told nothing more, but what it pins stays pinned
    until it hangs up, because it may be reading."""

    socket: socket.socket
    nonce: bytes
    trusted: bool = False
    muted: bool = False
    waiting: dict[int, _Waiting] = field(default_factory=dict[int, _Waiting])
    pinned: dict[int, Slot] = field(default_factory=dict[int, Slot])
    outbox: deque[bytes] = field(default_factory=deque[bytes])


class ShmServer:
    """Listens from construction on. `wake` after every change of the pool.

    Raises:
        OSError: the address is taken.
    """

    def __init__(self, address: str, token: bytes, slab: Slab, pool: SlotPool, clock: Clock) -> None:
        self._listener = _listen(address)
        self._token = token
        self._slab = slab
        self._slab_bytes = slab.memory.nbytes
        self._pool = pool
        self._clock = clock
        self._closing = False
        self._listen_at: float | None = None
        self._readers: set[_Reader] = set()
        self._selector = selectors.DefaultSelector()
        self._waker: int | None = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._waker_lock = threading.Lock()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._waker, selectors.EVENT_READ)
        self._thread = threading.Thread(
            target=self._run, args=(self._waker,), name=f"shm-server-{address}", daemon=True
        )
        self._thread.start()

    def wake(self) -> None:
        with self._waker_lock, suppress(BlockingIOError):  # counter full: a wake-up is due anyway
            if self._waker is not None:
                os.eventfd_write(self._waker, 1)

    def close(self) -> None:
        """Hang up on every reader and join the thread. Can be called twice."""
        if self._closing:
            return
        self._closing = True
        self.wake()
        self._thread.join(CLOSE_SECONDS)

    def _run(self, waker: int) -> None:
        try:
            while not self._closing:
                for key, mask in self._selector.select(self._sleep_seconds()):
                    self._on_event(key, mask)
                self._answer_all()
                if self._listen_at is not None and time.monotonic() >= self._listen_at:
                    self._listen_at = None
                    self._selector.register(self._listener, selectors.EVENT_READ)
        finally:
            # Also when this thread breaks: readers must learn that nobody will answer.
            for reader in list(self._readers):
                self._drop(reader)
            self._selector.close()
            self._listener.close()
            with self._waker_lock:
                os.close(waker)
                self._waker = None

    def _sleep_seconds(self) -> float:
        with self._pool.lock:
            due_at = self._pool.table.sweep_at
        for reader in self._readers:
            due_at = min([due_at, *(waiting.deadline_at for waiting in reader.waiting.values())])
        return min(max(0.0, due_at - self._clock()), _MAX_SLEEP_SECONDS)

    def _on_event(self, key: selectors.SelectorKey, mask: int) -> None:
        if key.fileobj is self._listener:
            self._accept()
        elif key.fd == self._waker:
            os.eventfd_read(key.fd)
        elif isinstance(key.data, _Reader) and key.data in self._readers:
            if mask & selectors.EVENT_WRITE:
                self._flush(key.data)
            if mask & selectors.EVENT_READ:
                self._receive(key.data)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                # The listener stays readable, so look away for a while instead of spinning.
                log.warning("no descriptor left for another reader of shared memory")
                self._selector.unregister(self._listener)
                self._listen_at = time.monotonic() + _MAX_SLEEP_SECONDS
            return  # otherwise it hung up before we came
        if len(self._readers) >= MAX_READERS or not handshake.is_same_user(connection):
            connection.close()
            return
        connection.setblocking(False)
        reader = _Reader(connection, handshake.new_nonce())
        self._readers.add(reader)
        self._selector.register(connection, selectors.EVENT_READ, reader)
        self._send(reader, Challenge(nonce=reader.nonce))

    def _receive(self, reader: _Reader) -> None:
        try:
            data = reader.socket.recv(MAX_FRAME_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(reader)
        elif not reader.muted:
            try:
                self._on_frame(reader, decode_from_consumer(data))
            except FrameError as error:
                log.warning("a reader of shared memory broke the protocol: %s", error)
                self._mute(reader)

    def _mute(self, reader: _Reader) -> None:
        reader.muted = True
        reader.outbox.clear()
        reader.waiting.clear()
        self._selector.modify(reader.socket, selectors.EVENT_READ, reader)
        with suppress(OSError):
            reader.socket.shutdown(socket.SHUT_WR)

    def _on_frame(self, reader: _Reader, frame: FromConsumer) -> None:
        if not reader.trusted and not isinstance(frame, Hello):
            raise FrameError("it did not introduce itself")
        match frame:
            case Hello():
                self._welcome(reader, frame)
            case Fetch():
                self._on_fetch(reader, frame)
            case Done(request=request):
                reader.waiting.pop(request, None)
                if (slot := reader.pinned.pop(request, None)) is not None:
                    with self._pool.lock:
                        self._pool.table.unpin(slot)
            case Release(claim=claim):
                with self._pool.lock:
                    self._pool.table.withdraw(claim)
            case _:
                assert_never(frame)

    def _welcome(self, reader: _Reader, hello: Hello) -> None:
        if reader.trusted or not handshake.proves(hello.proof, self._token, "consumer", reader.nonce):
            raise FrameError("its token is wrong")
        reader.trusted = True
        proof = handshake.proof(self._token, "producer", hello.nonce)
        try:
            socket.send_fds(
                reader.socket, [encode(Welcome(proof=proof, slab_bytes=self._slab_bytes))], [self._slab.fd]
            )
        except OSError:
            self._drop(reader)

    def _on_fetch(self, reader: _Reader, fetch: Fetch) -> None:
        if fetch.request in reader.waiting or fetch.request in reader.pinned:
            raise FrameError("it used a request number twice")
        if len(reader.waiting) + len(reader.pinned) >= MAX_FETCHES_PER_READER:
            text = f"more than {MAX_FETCHES_PER_READER} fetches at once"
            self._send(reader, Refused(request=fetch.request, code=QueueFull.code, message=text))
            return
        reader.waiting[fetch.request] = _Waiting(fetch, self._clock())

    def _answer_all(self) -> None:
        now = self._clock()
        with self._pool.lock:
            self._pool.table.sweep()
            answers = [
                (reader, answer)
                for reader in self._readers
                for waiting in list(reader.waiting.values())
                if (answer := self._answer(reader, waiting, now)) is not None
            ]
        for reader, answer in answers:
            self._send(reader, answer)

    def _answer(self, reader: _Reader, waiting: _Waiting, now: float) -> Granted | Refused | None:
        """Runs under the pool's lock. None: not yet."""
        request = waiting.fetch.request
        answer: Granted | Refused | None = None
        try:
            slot = self._pool.table.find(waiting.fetch.claim)
            if slot.state is SlotState.FAILED:
                code, message = slot.failure
                answer = Refused(request=request, code=code, message=message)
            elif slot.state is SlotState.READY:
                answer = self._grant(reader, waiting, slot)
        except EmbeddingUnavailable as error:
            answer = Refused(request=request, code=error.code, message=error.message)
        if answer is None and now >= waiting.deadline_at:
            answer = Refused(request=request, code=DeadlineExceeded.code, message="it was not ready in time")
        if answer is not None:
            del reader.waiting[request]
        return answer

    def _grant(self, reader: _Reader, waiting: _Waiting, slot: Slot) -> Granted | None:
        if any(pinned.quarantined for pinned in reader.pinned.values()):
            raise EmbeddingUnavailable("this reader holds expired memory for too long to be given more")
        if len(reader.pinned) >= MAX_PINS_PER_READER:
            return None
        request = waiting.fetch.request
        extent = self._pool.table.pin(slot)
        reader.pinned[request] = slot
        return Granted(
            request=request,
            offset=extent.offset,
            size_bytes=slot.size_bytes,
            note=slot.note,
            waited_ms=1000 * max(0.0, slot.ready_at - waiting.since),
        )

    def _send(self, reader: _Reader, frame: FromProducer) -> None:
        if reader in self._readers and not reader.muted:
            reader.outbox.append(encode(frame))
            self._flush(reader)

    def _flush(self, reader: _Reader) -> None:
        try:
            while reader.outbox:
                reader.socket.send(reader.outbox[0])
                reader.outbox.popleft()
        except BlockingIOError:
            # It does not read: do not read from it either, so that its outbox stays bounded.
            self._selector.modify(reader.socket, selectors.EVENT_WRITE, reader)
            return
        except OSError:
            self._drop(reader)
            return
        self._selector.modify(reader.socket, selectors.EVENT_READ, reader)

    def _drop(self, reader: _Reader) -> None:
        """It hung up, so it reads no more: its pins are void."""
        if reader not in self._readers:
            return
        self._readers.remove(reader)
        self._selector.unregister(reader.socket)
        reader.socket.close()
        with self._pool.lock:
            for slot in reader.pinned.values():
                self._pool.table.unpin(slot)


def _listen(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind("\0" + address)
        listener.listen(MAX_READERS)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
