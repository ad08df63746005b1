from __future__ import annotations

from dataclasses import replace

import pytest

from triptych.config import TransportConfig
from triptych.errors import EmbeddingUnavailable, QueueFull
from triptych.transport import slots
from triptych.transport.slots import Slot, SlotState, SlotTable

CONFIG = TransportConfig(pool_bytes=1024, lease_seconds=30, max_wait_seconds=60)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(clock: Clock) -> SlotTable:
    return SlotTable(CONFIG, CONFIG.pool_bytes, clock)


def pending(table: SlotTable, size_bytes: int = 64) -> Slot:
    return table.reserve("key", "ns", size_bytes)


def ready(table: SlotTable, size_bytes: int = 64) -> Slot:
    slot = pending(table, size_bytes)
    assert table.begin_write(slot.claim) is slot
    table.end_write(slot, b"note")
    return slot


def test_slot_is_found_by_its_whole_claim_only(table: SlotTable) -> None:
    slot = ready(table)
    claim = slot.claim

    assert table.find(claim) is slot
    for wrong in (
        replace(claim, key="other"),
        replace(claim, namespace="other"),
        replace(claim, incarnation="other"),
        replace(claim, generation=claim.generation + 1),
        replace(claim, lease_id="other"),
    ):
        with pytest.raises(EmbeddingUnavailable):
            table.find(wrong)
        table.withdraw(wrong)
        table.fail(wrong, "internal", "")
        assert table.begin_write(wrong) is None
    assert table.find(claim) is slot


def test_generations_only_grow_and_leases_are_unlike(table: SlotTable) -> None:
    claims = [pending(table).claim for _ in range(5)]

    assert [claim.generation for claim in claims] == [1, 2, 3, 4, 5]
    assert len({claim.lease_id for claim in claims}) == 5


def test_lease_runs_from_publication(table: SlotTable, clock: Clock) -> None:
    slot = pending(table)
    clock.now += 50
    table.begin_write(slot.claim)
    table.end_write(slot, b"")

    clock.now += 29
    assert table.find(slot.claim).state is SlotState.READY
    clock.now += 1
    with pytest.raises(EmbeddingUnavailable):
        table.find(slot.claim)
    assert table.usage().used_bytes == 0


def test_reader_keeps_expired_memory_until_it_is_done(table: SlotTable, clock: Clock) -> None:
    slot = ready(table, 1024)
    table.pin(slot)
    table.pin(slot)
    clock.now += 31

    with pytest.raises(QueueFull):
        table.reserve("key", "ns", 1)
    table.unpin(slot)
    with pytest.raises(QueueFull):
        table.reserve("key", "ns", 1)
    table.unpin(slot)

    table.reserve("key", "ns", 1024)


def test_writer_keeps_expired_memory_until_it_is_done(table: SlotTable, clock: Clock) -> None:
    slot = pending(table, 1024)
    table.begin_write(slot.claim)
    clock.now += 61
    with pytest.raises(QueueFull):
        table.reserve("key", "ns", 1)

    table.end_write(slot, b"")

    assert slot.state is SlotState.DOOMED
    assert table.usage().used_bytes == 0


def test_failure_while_writing_wins_and_frees_at_the_end(table: SlotTable) -> None:
    slot = pending(table)
    table.begin_write(slot.claim)
    table.fail(slot.claim, "media_invalid", "why")
    assert table.usage().used_bytes == 64

    table.end_write(slot, b"")

    assert table.usage().used_bytes == 0
    assert table.find(slot.claim).failure == ("media_invalid", "why")


def test_failure_is_told_for_a_lease(table: SlotTable, clock: Clock) -> None:
    slot = pending(table)
    table.fail(slot.claim, "media_invalid", "why")

    clock.now += 29
    assert table.find(slot.claim).state is SlotState.FAILED
    clock.now += 1
    with pytest.raises(EmbeddingUnavailable):
        table.find(slot.claim)


def test_slot_is_written_once(table: SlotTable) -> None:
    slot = pending(table)
    table.begin_write(slot.claim)
    assert table.begin_write(slot.claim) is None
    table.end_write(slot, b"")

    assert table.begin_write(slot.claim) is None


def test_frozen_reader_is_counted_a_lease_after_expiry_and_its_memory_stays_out_of_use(
    table: SlotTable, clock: Clock
) -> None:
    slot = ready(table, 1000)
    table.pin(slot)
    clock.now += 30
    table.sweep()
    clock.now += 29
    assert table.usage().num_quarantined == 0
    clock.now += 1

    usage = table.usage()
    assert slot.quarantined
    assert (usage.num_held, usage.num_quarantined, usage.quarantined_bytes) == (1, 1, 1000)
    clock.now += 1_000_000
    with pytest.raises(QueueFull):
        table.reserve("key", "ns", 1)
    table.unpin(slot)
    usage = table.usage()
    assert (usage.num_quarantined, usage.used_bytes, usage.quarantined_total) == (0, 0, 1)


def test_withdrawn_slot_takes_no_new_readers_and_frees_after_the_last(table: SlotTable) -> None:
    slot = ready(table)
    table.pin(slot)

    table.withdraw(slot.claim)
    table.withdraw(slot.claim)

    with pytest.raises(EmbeddingUnavailable):
        table.find(slot.claim)
    assert table.usage().used_bytes == 64
    table.unpin(slot)
    assert table.usage().used_bytes == 0


def test_number_of_slots_is_bounded_though_failed_ones_hold_no_memory(
    table: SlotTable, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "MAX_SLOTS", 3)
    for _ in range(3):
        table.fail(pending(table).claim, "internal", "")
    assert table.usage().used_bytes == 0
    with pytest.raises(QueueFull):
        pending(table)

    clock.now += 31

    pending(table)


def test_sweep_is_due_exactly_when_something_expires(table: SlotTable, clock: Clock) -> None:
    assert table.sweep_at == float("inf")
    slot = ready(table)
    pending(table)
    assert table.sweep_at == clock.now + 30
    table.pin(slot)

    clock.now += 30
    table.sweep()
    assert table.sweep_at == clock.now + 30  # the other reservation, and the pinned one's quarantine
    clock.now += 30
    table.sweep()

    assert table.sweep_at == float("inf")  # only a quarantined slot is left: nothing changes by time


def test_clearing_dooms_everything_but_what_is_read(table: SlotTable) -> None:
    read, unread = ready(table), ready(table)
    table.pin(read)

    table.clear()

    assert (read.state, unread.state) == (SlotState.DOOMED, SlotState.DOOMED)
    assert table.usage().used_bytes == 64
