"""Producer and consumer in one process: the same slots as shared memory, without sockets."""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from triptych.config import TransportConfig
from triptych.errors import DeadlineExceeded, EmbeddingUnavailable, error_from_code
from triptych.messages import TensorRef
from triptych.transport.interface import Fetched
from triptych.transport.pool import SlotPool
from triptych.transport.slots import Clock, PoolUsage, Slot, SlotState, claim_of
from triptych.transport.tensors import Bytes, copy_out

TRANSPORT: Final = "inproc"
_TICK_SECONDS: Final = 0.25
"""A waiting reader looks this often whether its slot has expired; everything else wakes it."""


class InprocExchange:
    """Where consumers of one process find its producers by address. Thread-safe."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._pools: dict[str, SlotPool] = {}

    def join(self, address: str, pool: SlotPool) -> None:
        with self.changed:
            self._pools[address] = pool

    def leave(self, address: str, pool: SlotPool) -> None:
        with self.changed:
            if self._pools.get(address) is pool:
                del self._pools[address]
            self.changed.notify_all()

    def find(self, address: str) -> SlotPool:
        """
        Raises:
            EmbeddingUnavailable: nobody is there (any more).
        """
        with self.changed:
            pool = self._pools.get(address)
        if pool is None:
            raise EmbeddingUnavailable(f"no producer at {address}")
        return pool

    def notify(self) -> None:
        with self.changed:
            self.changed.notify_all()


class InprocProducer:
    """A `Producer` whose pool is ordinary memory, taken page by page as it is used."""

    def __init__(
        self,
        config: TransportConfig,
        exchange: InprocExchange,
        *,
        address: str | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.address = address or f"inproc-{secrets.token_hex(8)}"
        self._exchange = exchange
        self._pool = SlotPool(
            config,
            np.zeros(config.pool_bytes, np.uint8),
            transport=TRANSPORT,
            address=self.address,
            clock=clock,
            changed=exchange.notify,
        )
        exchange.join(self.address, self._pool)

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
        self._exchange.leave(self.address, self._pool)
        self._pool.close()


@dataclass(frozen=True, slots=True)
class _Pinned:
    pool: SlotPool
    slot: Slot
    memory: Bytes


class InprocConsumer:
    """A `Consumer` of the producers of one exchange."""

    def __init__(self, config: TransportConfig, exchange: InprocExchange) -> None:
        self._config = config
        self._exchange = exchange
        self._closed = False

    def fetch(self, ref: TensorRef, deadline_seconds: float) -> Fetched:
        started_at = time.monotonic()
        pinned = self._wait(ref, started_at + min(deadline_seconds, self._config.max_wait_seconds))
        waited_seconds = time.monotonic() - started_at
        try:
            tensor = copy_out(pinned.memory, ref)
        finally:
            with pinned.pool.lock:
                pinned.pool.table.unpin(pinned.slot)
        return Fetched(tensor=tensor, note=pinned.slot.note, waited_seconds=waited_seconds)

    def release(self, ref: TensorRef) -> None:
        try:
            self._exchange.find(ref.address).withdraw(ref)
        except EmbeddingUnavailable:
            return

    def close(self) -> None:
        self._closed = True
        self._exchange.notify()

    def _wait(self, ref: TensorRef, deadline_at: float) -> _Pinned:
        # Looked at under the exchange's lock, so that no change slips in between the look and the wait.
        with self._exchange.changed:
            while (pinned := self._pin(ref)) is None:
                remaining = deadline_at - time.monotonic()
                if remaining <= 0:
                    raise DeadlineExceeded(f"{ref.key} was not ready in time")
                self._exchange.changed.wait(min(remaining, _TICK_SECONDS))
            return pinned

    def _pin(self, ref: TensorRef) -> _Pinned | None:
        if self._closed:
            raise EmbeddingUnavailable("this consumer is closed")
        pool = self._exchange.find(ref.address)
        with pool.lock:
            slot = pool.table.find(claim_of(ref))
            if slot.state is SlotState.FAILED:
                raise error_from_code(*slot.failure)
            if slot.state is SlotState.PENDING:
                return None
            extent = pool.table.pin(slot)
            return _Pinned(pool, slot, pool.read(extent.offset, slot.size_bytes))
