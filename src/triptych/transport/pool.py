"""Slots over one slab of memory: what every producer that owns memory does, however its readers come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import torch

from triptych.config import TransportConfig
from triptych.errors import QueueFull
from triptych.messages import TensorRef
from triptych.transport.slots import Clock, PoolUsage, SlotTable, claim_of
from triptych.transport.tensors import Bytes, copy_in, dtype_name, fits, tensor_bytes

MAX_NOTE_BYTES: Final = 1024
MAX_FAILURE_CHARACTERS: Final = 1024
CLOSE_SECONDS: Final = 5.0


class SlotPool:
    """Thread-safe. Readers' sides take `lock` around `table`; `changed` is told (outside the lock) after
    every change that a waiting reader might care about. Copying happens outside the lock.
    """

    def __init__(
        self,
        config: TransportConfig,
        memory: Bytes,
        *,
        transport: str,
        address: str,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        self.lock = threading.Condition()
        self.table = SlotTable(config, memory.nbytes, clock)
        self._memory: Bytes | None = memory
        self._transport = transport
        self._address = address
        self._changed = changed
        self._num_writers = 0

    def reserve(self, key: str, namespace: str, dtype: torch.dtype, shape: tuple[int, ...]) -> TensorRef:
        """See `Producer.reserve`."""
        name, size_bytes = dtype_name(dtype), tensor_bytes(dtype, shape)
        with self.lock:
            if self._memory is None:
                raise QueueFull("this producer is closed")
            slot = self.table.reserve(key, namespace, size_bytes)
        return TensorRef(
            key=key,
            namespace=namespace,
            dtype=name,
            shape=tuple(shape),
            size_bytes=size_bytes,
            transport=self._transport,
            address=self._address,
            lease_id=slot.claim.lease_id,
            incarnation=slot.claim.incarnation,
            generation=slot.claim.generation,
        )

    def publish(self, ref: TensorRef, tensor: torch.Tensor, note: bytes) -> None:
        """See `Producer.publish`."""
        if not fits(ref, tensor):
            raise ValueError(
                f"reserved {ref.dtype} {list(ref.shape)}, got {tensor.dtype} {list(tensor.shape)}"
            )
        if len(note) > MAX_NOTE_BYTES:
            raise ValueError(f"a note has at most {MAX_NOTE_BYTES} bytes, this one has {len(note)}")
        with self.lock:
            slot = self.table.begin_write(claim_of(ref))
            if slot is None or slot.extent is None or self._memory is None:
                return
            self._num_writers += 1
            target = self._memory[slot.extent.offset : slot.extent.offset + slot.size_bytes]
        try:
            copy_in(target, tensor)
        except BaseException:
            # Half a tensor must not become READY: whoever waits for it learns that it is gone.
            with self.lock:
                self.table.withdraw(slot.claim)
            raise
        finally:
            with self.lock:
                self.table.end_write(slot, note)
                self._num_writers -= 1
                self.lock.notify_all()
            self._changed()

    def fail(self, ref: TensorRef, code: str, message: str) -> None:
        """See `Producer.fail`."""
        with self.lock:
            self.table.fail(claim_of(ref), code, message[:MAX_FAILURE_CHARACTERS])
        self._changed()

    @property
    def capacity_bytes(self) -> int:
        return self.usage().capacity_bytes

    def is_wanted(self, ref: TensorRef) -> bool:
        """See `Producer.is_wanted`."""
        with self.lock:
            return self.table.is_pending(claim_of(ref))

    def withdraw(self, ref: TensorRef) -> None:
        """See `Producer.withdraw`."""
        with self.lock:
            self.table.withdraw(claim_of(ref))
        self._changed()

    def usage(self) -> PoolUsage:
        with self.lock:
            return self.table.usage()

    def read(self, offset: int, size_bytes: int) -> Bytes:
        """The bytes of a pinned slot, for readers in this process."""
        assert self._memory is not None
        return self._memory[offset : offset + size_bytes]

    def close(self) -> None:
        """Doom every slot and let go of the memory once writers are done. Can be called twice."""
        with self.lock:
            self.table.clear()
            self.lock.wait_for(lambda: self._num_writers == 0, timeout=CLOSE_SECONDS)
            self._memory = None
        self._changed()
