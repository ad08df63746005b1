"""Shared memory between processes of one host and one user: one slab a producer, mapped read-only by readers.

The slab is anonymous and the socket abstract: nothing is left in any file system, however a process dies.
"""

from __future__ import annotations

import secrets
import threading
import time
from concurrent.futures import Future
from typing import Final

import torch

from triptych.config import TransportConfig
from triptych.errors import ConfigError, DeadlineExceeded, EmbeddingUnavailable, TriptychError
from triptych.messages import TensorRef
from triptych.transport import handshake
from triptych.transport.interface import Fetched
from triptych.transport.pool import SlotPool
from triptych.transport.shm_connection import ShmConnection, dial
from triptych.transport.shm_server import ShmServer
from triptych.transport.slab import make_slab
from triptych.transport.slots import Clock, PoolUsage
from triptych.transport.tensors import copy_out

TRANSPORT: Final = "shm"
_RELEASE_SECONDS: Final = 0.25


class ShmProducer:
    """A `Producer` with a slab of `config.pool_bytes`, resident from the start, and a thread that serves it.

    `address` names the abstract socket; leave it out unless a fixed one is needed.

    Raises:
        ConfigError: not Linux, no memory for the slab, an empty token, or the address is taken.
    """

    def __init__(
        self,
        config: TransportConfig,
        token: bytes,
        *,
        address: str | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        _check(token)
        self.address = address or f"triptych-{secrets.token_hex(8)}"
        self._slab = make_slab(config.pool_bytes)
        self._pool = SlotPool(
            config,
            self._slab.memory,
            transport=TRANSPORT,
            address=self.address,
            clock=clock,
            changed=self._wake,
        )
        try:
            self._server = ShmServer(self.address, token, self._slab, self._pool, clock)
        except OSError as error:
            self._slab.close()
            raise ConfigError(f"cannot listen at {self.address}: {error.strerror}") from error

    def reserve(self, key: str, namespace: str, dtype: torch.dtype, shape: tuple[int, ...]) -> TensorRef:
        return self._pool.reserve(key, namespace, dtype, shape)

    def publish(self, ref: TensorRef, tensor: torch.Tensor, note: bytes = b"") -> None:
        self._pool.publish(ref, tensor, note)

    def fail(self, ref: TensorRef, code: str, message: str) -> None:
        self._pool.fail(ref, code, message)

    @property
    def capacity_bytes(self) -> int:
        return self._pool.capacity_bytes

    def is_wanted(self, ref: TensorRef) -> bool:
        return self._pool.is_wanted(ref)

    def withdraw(self, ref: TensorRef) -> None:
        self._pool.withdraw(ref)

    def usage(self) -> PoolUsage:
        return self._pool.usage()

    def close(self) -> None:
        self._server.close()
        self._pool.close()
        self._slab.close()

    def _wake(self) -> None:
        self._server.wake()


class ShmConsumer:
    """A `Consumer` of every `ShmProducer` of this host with the same token; one connection a producer.

    Raises:
        ConfigError: not Linux, or an empty token.
    """

    def __init__(self, config: TransportConfig, token: bytes) -> None:
        _check(token)
        self._config = config
        self._token = token
        self._lock = threading.Lock()
        self._dialled: dict[str, Future[ShmConnection]] = {}
        self._closed = False

    def fetch(self, ref: TensorRef, deadline_seconds: float) -> Fetched:
        deadline_at = time.monotonic() + min(deadline_seconds, self._config.max_wait_seconds)
        connection = self._connection(ref.address, deadline_at)
        with connection.borrow(ref, deadline_at) as borrowed:
            return Fetched(
                tensor=copy_out(borrowed.memory, ref),
                note=borrowed.note,
                waited_seconds=borrowed.waited_seconds,
            )

    def release(self, ref: TensorRef) -> None:
        deadline_at = time.monotonic() + _RELEASE_SECONDS
        try:
            self._connection(ref.address, deadline_at).release(ref, deadline_at)
        except TriptychError:
            return  # gone, frozen or closed: the lease frees it

    def close(self) -> None:
        with self._lock:
            self._closed = True
            dialled = list(self._dialled.values())
            self._dialled.clear()
        for future in dialled:
            if future.done() and future.exception() is None:
                future.result().close()

    def _connection(self, address: str, deadline_at: float) -> ShmConnection:
        """The live connection to an address; the first caller dials, the others wait for it.

        Raises:
            EmbeddingUnavailable, DeadlineExceeded: see `dial`.
        """
        while True:
            mine, future = self._claim_dial(address)
            if mine:
                return self._dial(address, future, deadline_at)
            try:
                return future.result(max(0.0, deadline_at - time.monotonic()))
            except TimeoutError as error:
                raise DeadlineExceeded(f"the producer at {address} does not answer") from error
            except DeadlineExceeded:
                # The dialler had less time than we have: dial ourselves.
                if time.monotonic() >= deadline_at:
                    raise

    def _claim_dial(self, address: str) -> tuple[bool, Future[ShmConnection]]:
        with self._lock:
            if self._closed:
                raise EmbeddingUnavailable("this consumer is closed")
            future = self._dialled.get(address)
            if future is not None and not _is_dead(future):
                return False, future
            for other in [other for other, known in self._dialled.items() if _is_dead(known)]:
                del self._dialled[other]
            self._dialled[address] = Future[ShmConnection]()
            return True, self._dialled[address]

    def _dial(self, address: str, future: Future[ShmConnection], deadline_at: float) -> ShmConnection:
        try:
            connection = dial(address, self._token, deadline_at)
        except BaseException as error:
            future.set_exception(error)
            raise
        with self._lock:
            closed = self._closed
            future.set_result(connection)
        if closed:
            connection.close()
        return connection


def _is_dead(future: Future[ShmConnection]) -> bool:
    return future.done() and (future.exception() is not None or future.result().broken)


def _check(token: bytes) -> None:
    handshake.require_linux()
    if not token:
        raise ConfigError("transport shm needs a token that both sides know")
