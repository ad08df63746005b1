"""The life of every slot of one pool: bookkeeping only, with an injected clock; no sockets, no threads.

    reserve ─▶ PENDING ──end_write──▶ READY ──┐
                  │ └──────fail──▶ FAILED ────┤ lease expires, withdraw, close
                  └───────────────────────────┴──▶ DOOMED ── last holder leaves ──▶ (memory free)
                                                      │
                                                      └─ a reader still pins it a lease later: quarantined

A holder is a reader's pin or the writer. A slot's memory returns to the pool only when it has no holder, and
a DOOMED slot takes no new ones. Quarantined memory stays out of use until its reader finishes or dies; it is
counted, and whoever serves readers gives such a reader nothing more, which bounds it.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from triptych.config import TransportConfig
from triptych.errors import EmbeddingUnavailable, QueueFull
from triptych.messages import TensorRef
from triptych.transport.extents import Extent, ExtentAllocator

Clock = Callable[[], float]
"""Seconds, monotonic."""

MAX_SLOTS: Final = 65_536


class SlotState(Enum):
    PENDING = "pending"
    READY = "ready"
    FAILED = "failed"
    DOOMED = "doomed"


@dataclass(frozen=True, slots=True)
class Claim:
    """What a reader has to know of a slot to use it; every field must fit."""

    lease_id: str
    key: str
    namespace: str
    incarnation: str
    generation: int


def claim_of(ref: TensorRef) -> Claim:
    return Claim(ref.lease_id, ref.key, ref.namespace, ref.incarnation, ref.generation)


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """One moment of a pool, for metrics. `used_bytes` includes what alignment wastes.

    `num_held` slots are expired or withdrawn, but a reader or writer is still at work; of those,
    `num_quarantined` have a reader that has not moved for a whole lease. `*_total` only grow.
    """

    capacity_bytes: int
    used_bytes: int
    num_slots: int
    num_pins: int
    num_held: int
    num_quarantined: int
    quarantined_bytes: int
    expired_total: int
    quarantined_total: int


@dataclass(slots=True, eq=False)
class Slot:
    """Changed by its `SlotTable` only. `extent` is None once the memory is free."""

    claim: Claim
    size_bytes: int
    extent: Extent | None
    expires_at: float
    state: SlotState = SlotState.PENDING
    ready_at: float = math.inf
    writing: bool = False
    num_pins: int = 0
    quarantined: bool = False
    note: bytes = b""
    failure: tuple[str, str] = ("", "")
    """(code, message) once FAILED."""


class SlotTable:
    """All slots of one pool. Not thread-safe: the owner locks."""

    def __init__(self, config: TransportConfig, capacity_bytes: int, clock: Clock) -> None:
        self.incarnation = secrets.token_hex(16)
        self._config = config
        self._clock = clock
        self._extents = ExtentAllocator(capacity_bytes)
        self._live: dict[str, Slot] = {}
        self._held: set[Slot] = set()
        self._generation = 0
        self._sweep_at = math.inf
        self._expired_total = 0
        self._quarantined_total = 0

    @property
    def sweep_at(self) -> float:
        """Nothing expires before this moment (infinity: nothing to expire)."""
        return self._sweep_at

    def reserve(self, key: str, namespace: str, size_bytes: int) -> Slot:
        """A new PENDING slot with memory.

        Raises:
            QueueFull: no hole is large enough, or there are too many slots.
        """
        self.sweep()
        extent = self._extents.take(size_bytes) if len(self._live) < MAX_SLOTS else None
        if extent is None:
            used, capacity = self._extents.used_bytes, self._extents.capacity_bytes
            raise QueueFull(f"no room for {size_bytes} bytes: {used} of {capacity} are taken")
        self._generation += 1
        claim = Claim(secrets.token_hex(16), key, namespace, self.incarnation, self._generation)
        slot = Slot(claim, size_bytes, extent, self._expiry(self._config.max_wait_seconds))
        self._live[claim.lease_id] = slot
        return slot

    def find(self, claim: Claim) -> Slot:
        """The slot of a claim: PENDING, READY or FAILED.

        Raises:
            EmbeddingUnavailable: there is none, it expired, or the claim is for another use of it.
        """
        self.sweep()
        slot = self._live.get(claim.lease_id)
        if slot is None or slot.claim != claim:
            raise EmbeddingUnavailable(f"{claim.key} is not here: never was, expired, released or remade")
        return slot

    def is_pending(self, claim: Claim) -> bool:
        """Whether the slot waits for its tensor, and somebody may yet read it."""
        self.sweep()
        slot = self._live.get(claim.lease_id)
        return slot is not None and slot.claim == claim and slot.state is SlotState.PENDING

    def begin_write(self, claim: Claim) -> Slot | None:
        """Hold the memory for writing; None if nobody waits for it any more. Pair with `end_write`."""
        self.sweep()
        slot = self._live.get(claim.lease_id)
        if slot is None or slot.claim != claim or slot.state is not SlotState.PENDING or slot.writing:
            return None
        slot.writing = True
        return slot

    def end_write(self, slot: Slot, note: bytes) -> None:
        """The memory is filled: READY, unless it was failed or doomed meanwhile."""
        slot.writing = False
        if slot.state is SlotState.PENDING:
            slot.state, slot.note = SlotState.READY, note
            slot.ready_at = self._clock()
            slot.expires_at = self._expiry(self._config.lease_seconds)
        self._settle(slot)

    def fail(self, claim: Claim, code: str, message: str) -> None:
        """PENDING → FAILED: the memory is free at once, the reason is kept for a lease. Otherwise nothing."""
        slot = self._live.get(claim.lease_id)
        if slot is None or slot.claim != claim or slot.state is not SlotState.PENDING:
            return
        slot.state, slot.failure = SlotState.FAILED, (code, message)
        slot.expires_at = self._expiry(self._config.lease_seconds)
        self._settle(slot)

    def withdraw(self, claim: Claim) -> None:
        """DOOMED, whatever it was. Idempotent."""
        slot = self._live.get(claim.lease_id)
        if slot is not None and slot.claim == claim:
            self._doom(slot)

    def pin(self, slot: Slot) -> Extent:
        """Hold a READY slot for reading; returns where its bytes are. Pair with `unpin`."""
        assert slot.state is SlotState.READY, slot.state
        assert slot.extent is not None
        slot.num_pins += 1
        return slot.extent

    def unpin(self, slot: Slot) -> None:
        slot.num_pins -= 1
        self._settle(slot)

    def sweep(self) -> None:
        """Doom what has expired, and count frozen readers. Cheap when nothing is due."""
        now = self._clock()
        if now < self._sweep_at:
            return
        for slot in [slot for slot in self._live.values() if slot.expires_at <= now]:
            self._expired_total += 1
            self._doom(slot)
        for slot in self._held:
            if not slot.quarantined and slot.num_pins and slot.expires_at <= now:
                slot.quarantined = True
                self._quarantined_total += 1
        watched = [*self._live.values(), *(slot for slot in self._held if not slot.quarantined)]
        self._sweep_at = min((slot.expires_at for slot in watched if slot.expires_at > now), default=math.inf)

    def clear(self) -> None:
        """Doom everything."""
        for slot in list(self._live.values()):
            self._doom(slot)

    def usage(self) -> PoolUsage:
        self.sweep()
        quarantined = [slot for slot in self._held if slot.quarantined]
        return PoolUsage(
            capacity_bytes=self._extents.capacity_bytes,
            used_bytes=self._extents.used_bytes,
            num_slots=len(self._live),
            num_pins=sum(slot.num_pins for slot in (*self._live.values(), *self._held)),
            num_held=len(self._held),
            num_quarantined=len(quarantined),
            quarantined_bytes=sum(slot.size_bytes for slot in quarantined),
            expired_total=self._expired_total,
            quarantined_total=self._quarantined_total,
        )

    def _expiry(self, seconds: float) -> float:
        expires_at = self._clock() + seconds
        self._sweep_at = min(self._sweep_at, expires_at)
        return expires_at

    def _doom(self, slot: Slot) -> None:
        del self._live[slot.claim.lease_id]
        self._held.add(slot)
        slot.state = SlotState.DOOMED
        # From here on, expires_at is when its readers count as frozen.
        slot.expires_at = self._expiry(self._config.lease_seconds)
        self._settle(slot)

    def _settle(self, slot: Slot) -> None:
        if slot.writing or slot.num_pins or slot.state not in (SlotState.FAILED, SlotState.DOOMED):
            return
        if slot.extent is not None:
            self._extents.give_back(slot.extent)
            slot.extent = None
        self._held.discard(slot)
