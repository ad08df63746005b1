"""The seam between stages: a tensor is reserved, published, fetched and released.

A slot's life:

    reserve ──▶ pending ──publish──▶ ready ──fetch──▶ (read under the reader's pin) ──release──▶ free
                   │                   │
                   ├──fail──▶ failed   └── lease expires unread ──▶ free
                   └── lease expires ──▶ free

Memory is never freed or reused while a reader or the writer holds it: expiry marks the slot, the last holder
frees it. Implementations are thread-safe; every method may be called from any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from triptych.messages import TensorRef


@dataclass(frozen=True, slots=True)
class Fetched:
    """`tensor` is the reader's own (CPU, contiguous); `note` is what the producer attached (≤ 1 KiB).

    `waited_seconds` is how much of the fetch passed before the producer was ready.
    """

    tensor: torch.Tensor
    note: bytes
    waited_seconds: float


class Producer(Protocol):
    """The side that owns the memory. One per process."""

    def reserve(self, key: str, namespace: str, dtype: torch.dtype, shape: tuple[int, ...]) -> TensorRef:
        """Take a slot for a tensor that does not exist yet; its lease (`TransportConfig.lease_seconds`) runs
        from publication, until then from reservation with `max_wait_seconds`.

        Raises:
            QueueFull: the pool has no room.
        """
        ...

    def publish(self, ref: TensorRef, tensor: torch.Tensor, note: bytes = b"") -> None:
        """Fill the slot; readers that wait are woken. A slot that expired or was released meanwhile: no-op.

        Raises:
            ValueError: dtype or shape differ from the reservation.
        """
        ...

    def fail(self, ref: TensorRef, code: str, message: str) -> None:
        """Readers get that error instead of a tensor. Idempotent."""
        ...

    @property
    def capacity_bytes(self) -> int:
        """Size of the whole pool: what exceeds it can never be reserved."""
        ...

    def is_wanted(self, ref: TensorRef) -> bool:
        """Whether anybody can still read what would be published: False once the slot was released, withdrawn
        or failed, or has expired. Work on it is then in vain."""
        ...

    def withdraw(self, ref: TensorRef) -> None:
        """Free the slot unless a reader holds it; then at its end. Idempotent."""
        ...

    def close(self) -> None:
        """Free everything; readers get EmbeddingUnavailable. Can be called twice."""
        ...


class Consumer(Protocol):
    """The side that reads."""

    def fetch(self, ref: TensorRef, deadline_seconds: float) -> Fetched:
        """Wait until the tensor is ready and return a copy of it. Blocks; call from a thread.

        Reading does not free the slot: several readers may share it. Call `release` when done.

        Raises:
            EmbeddingUnavailable: unknown key, wrong namespace, expired, producer dead, restarted or closed.
            DeadlineExceeded: not ready within `deadline_seconds`, or the producer is frozen.
            TriptychError: whatever the producer reported with `fail`.
        """
        ...

    def release(self, ref: TensorRef) -> None:
        """Tell the producer that this reference is not needed any more; never raises, hardly waits."""
        ...

    def close(self) -> None:
        """Can be called twice. Fetches under way end with EmbeddingUnavailable."""
        ...
