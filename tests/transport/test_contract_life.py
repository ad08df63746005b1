"""How long things live: leases, release, close, restart; and that nothing grows. For every transport."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import torch

from tests.transport.peers import (
    CONFIG,
    PATIENCE_SECONDS,
    Pair,
    ShmPeer,
    eventually,
    num_descriptors,
    private_bytes,
)
from tests.transport.samples import published, random_tensor, same_bits
from triptych.errors import EmbeddingUnavailable, QueueFull


def test_unread_tensor_expires_with_its_lease(pair: Pair) -> None:
    ref = published(pair.peer, torch.ones(4, 4))

    pair.peer.advance(CONFIG.lease_seconds + 1)

    with pytest.raises(EmbeddingUnavailable):
        pair.consumer.fetch(ref, PATIENCE_SECONDS)
    usage = pair.peer.usage()
    assert (usage.used_bytes, usage.num_slots, usage.expired_total) == (0, 0, 1)


def test_reservation_that_nobody_fills_outlives_a_lease_but_not_the_longest_wait(pair: Pair) -> None:
    ref = pair.peer.reserve(torch.float32, (4, 4))
    pair.peer.advance(CONFIG.lease_seconds + 1)
    assert pair.peer.usage().num_slots == 1

    pair.peer.advance(CONFIG.max_wait_seconds - CONFIG.lease_seconds)

    assert pair.peer.usage().used_bytes == 0
    pair.peer.publish(ref, torch.ones(4, 4))
    with pytest.raises(EmbeddingUnavailable):
        pair.consumer.fetch(ref, PATIENCE_SECONDS)


def test_waiting_reader_learns_that_the_reservation_expired(pair: Pair) -> None:
    ref = pair.peer.reserve(torch.float32, (4, 4))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pair.consumer.fetch, ref, PATIENCE_SECONDS)
        pair.peer.advance(CONFIG.max_wait_seconds + 1)

        with pytest.raises(EmbeddingUnavailable):
            waiting.result(PATIENCE_SECONDS)


def test_released_reference_frees_its_memory_and_is_unavailable(pair: Pair) -> None:
    ref = published(pair.peer, torch.ones(4, 4))

    pair.consumer.release(ref)
    pair.consumer.release(ref)

    eventually(lambda: pair.peer.usage().used_bytes == 0)
    with pytest.raises(EmbeddingUnavailable):
        pair.consumer.fetch(ref, PATIENCE_SECONDS)


def test_reference_is_released_before_it_is_ready(pair: Pair) -> None:
    ref = pair.peer.reserve(torch.float32, (4, 4))

    pair.consumer.release(ref)

    eventually(lambda: pair.peer.usage().used_bytes == 0)
    pair.peer.publish(ref, torch.ones(4, 4))
    assert pair.peer.usage().used_bytes == 0


def test_forged_release_frees_nothing(pair: Pair) -> None:
    ref = published(pair.peer, torch.ones(4, 4))

    pair.consumer.release(msgspec.structs.replace(ref, generation=ref.generation + 1))
    pair.consumer.release(msgspec.structs.replace(ref, address="triptych-nobody"))

    assert same_bits(pair.consumer.fetch(ref, PATIENCE_SECONDS).tensor, torch.ones(4, 4))


def test_withdrawn_tensor_is_unavailable(pair: Pair) -> None:
    ref = published(pair.peer, torch.ones(4, 4))

    pair.peer.withdraw(ref)
    pair.peer.withdraw(ref)

    with pytest.raises(EmbeddingUnavailable):
        pair.consumer.fetch(ref, PATIENCE_SECONDS)
    assert pair.peer.usage().used_bytes == 0


def test_full_pool_refuses_and_recovers(pair: Pair) -> None:
    half = (CONFIG.pool_bytes // 2,)
    refs = [pair.peer.reserve(torch.uint8, half) for _ in range(2)]
    with pytest.raises(QueueFull):
        pair.peer.reserve(torch.uint8, (1,))

    pair.peer.withdraw(refs[0])

    pair.peer.reserve(torch.uint8, half)


def test_expired_slots_make_room(pair: Pair) -> None:
    published(pair.peer, torch.zeros(CONFIG.pool_bytes, dtype=torch.uint8))

    pair.peer.advance(CONFIG.lease_seconds + 1)

    pair.peer.reserve(torch.uint8, (CONFIG.pool_bytes,))


def test_closing_the_producer_ends_waiting_and_later_fetches(pair: Pair) -> None:
    ready, pending = published(pair.peer, torch.ones(4, 4)), pair.peer.reserve(torch.float32, (4, 4))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pair.consumer.fetch, pending, PATIENCE_SECONDS)
        pair.peer.close_producer()
        pair.peer.close_producer()

        with pytest.raises(EmbeddingUnavailable):
            waiting.result(PATIENCE_SECONDS)
    with pytest.raises(EmbeddingUnavailable):
        pair.consumer.fetch(ready, PATIENCE_SECONDS)
    pair.consumer.release(ready)
    with pytest.raises(QueueFull):
        pair.peer.reserve(torch.float32, (4, 4))


def test_closing_the_consumer_ends_waiting_and_later_fetches(pair: Pair) -> None:
    ready, pending = published(pair.peer, torch.ones(4, 4)), pair.peer.reserve(torch.float32, (4, 4))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pair.consumer.fetch, pending, PATIENCE_SECONDS)
        pair.consumer.close()
        pair.consumer.close()

        with pytest.raises(EmbeddingUnavailable):
            waiting.result(PATIENCE_SECONDS)
    with pytest.raises(EmbeddingUnavailable):
        pair.consumer.fetch(ready, PATIENCE_SECONDS)
    pair.consumer.release(ready)


def test_reference_of_an_earlier_start_is_unavailable_at_the_same_address(pair: Pair) -> None:
    old = published(pair.peer, torch.ones(4, 4))
    pair.consumer.fetch(old, PATIENCE_SECONDS)
    pair.peer.stop()

    restarted = pair.restart()

    with pytest.raises(EmbeddingUnavailable):
        pair.consumer.fetch(old, PATIENCE_SECONDS)
    new = published(restarted, torch.full((4, 4), 2.0))
    assert new.address == old.address
    assert same_bits(pair.consumer.fetch(new, PATIENCE_SECONDS).tensor, torch.full((4, 4), 2.0))


def test_many_threads_fetch_at_once(pair: Pair) -> None:
    tensors = [random_tensor(torch.bfloat16, (1 + i, 64)) for i in range(12)]
    refs = [pair.peer.reserve(tensor.dtype, tuple(tensor.shape)) for tensor in tensors]
    with ThreadPoolExecutor(24) as threads:
        waiting = [threads.submit(pair.consumer.fetch, refs[i % 12], PATIENCE_SECONDS) for i in range(24 * 5)]
        for ref, tensor in zip(refs, tensors, strict=True):
            pair.peer.publish(ref, tensor)

        for i, future in enumerate(waiting):
            assert same_bits(future.result(PATIENCE_SECONDS).tensor, tensors[i % 12])
    eventually(lambda: pair.peer.usage().num_pins == 0)


def test_hundreds_of_cycles_grow_nothing(pair: Pair) -> None:
    tensor = random_tensor(torch.float32, (64, 1024))
    pids = {os.getpid(), pair.peer.pid if isinstance(pair.peer, ShmPeer) else os.getpid()}

    def cycle() -> None:
        ref = published(pair.peer, tensor, b"note")
        pair.consumer.fetch(ref, PATIENCE_SECONDS)
        pair.consumer.release(ref)
        failed = pair.peer.reserve(torch.float32, (4, 4))
        pair.peer.fail(failed, "internal", "")
        pair.peer.withdraw(failed)
        eventually(lambda: pair.peer.usage().used_bytes == 0)

    for _ in range(20):
        cycle()
    before = {pid: (num_descriptors(pid), private_bytes(pid)) for pid in pids}
    for _ in range(300):
        cycle()

    usage = pair.peer.usage()
    assert (usage.used_bytes, usage.num_slots, usage.num_pins, usage.num_held) == (0, 0, 0, 0)
    for pid, (descriptors, memory_bytes) in before.items():
        assert num_descriptors(pid) <= descriptors
        assert private_bytes(pid) < memory_bytes + 16 * 1024 * 1024  # leaking each tensor once: 75 MiB
