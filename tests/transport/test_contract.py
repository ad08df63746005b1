"""What every transport must do. For shared memory the producer is a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec
import pytest
import torch

from tests.transport.peers import (
    CONFIG,
    PATIENCE_SECONDS,
    TOKEN,
    InprocPeer,
    Peer,
    ShmPeer,
    eventually,
    num_descriptors,
    private_bytes,
)
from triptych.errors import (
    DeadlineExceeded,
    EmbeddingUnavailable,
    MediaInvalid,
    QueueFull,
    all_error_classes,
    error_from_code,
)
from triptych.messages import TensorRef
from triptych.transport.inproc import InprocConsumer, InprocExchange
from triptych.transport.interface import Consumer
from triptych.transport.shm import ShmConsumer

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
SOON_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Pair:
    """`restart` makes another producer at the same address, after the first has closed."""

    peer: Peer
    consumer: Consumer
    restart: Callable[[], Peer]


@pytest.fixture(params=["inproc", "shm"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    started: list[Peer] = []
    exchange = InprocExchange()

    def start(address: str | None = None) -> Peer:
        shm = request.param == "shm"
        started.append(ShmPeer(address=address) if shm else InprocPeer(exchange, address=address))
        return started[-1]

    peer = start()
    consumer: Consumer = (
        ShmConsumer(CONFIG, TOKEN) if request.param == "shm" else InprocConsumer(CONFIG, exchange)
    )
    yield Pair(peer, consumer, lambda: start(peer.address))
    consumer.close()
    for each in started:
        each.stop()


def random_tensor(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Any bits, except that a bool is 0 or 1."""
    num_bytes = dtype.itemsize * torch.Size(shape).numel()
    data = torch.randint(0, 2 if dtype is torch.bool else 256, (num_bytes,), dtype=torch.uint8)
    return data.view(dtype).reshape(shape)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Also where NaN is."""
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and torch.equal(left.reshape(-1).view(torch.uint8), right.reshape(-1).view(torch.uint8))
    )


def published(peer: Peer, tensor: torch.Tensor, note: bytes = b"") -> TensorRef:
    ref = peer.reserve(tensor.dtype, tuple(tensor.shape))
    peer.publish(ref, tensor, note)
    return ref


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back_bit_for_bit(pair: Pair, dtype: torch.dtype) -> None:
    for width in (1, 7, 64, 4096):
        tensor = random_tensor(dtype, (3, width))
        fetched = pair.consumer.fetch(published(pair.peer, tensor), PATIENCE_SECONDS)
        assert same_bits(fetched.tensor, tensor)
        assert fetched.tensor.is_contiguous()


@pytest.mark.parametrize("shape", [(), (5,), (0, 64), (64, 0), (2, 3, 5, 7), (1, 1)], ids=str)
def test_every_shape_comes_back(pair: Pair, shape: tuple[int, ...]) -> None:
    tensor = random_tensor(torch.bfloat16, shape)

    fetched = pair.consumer.fetch(published(pair.peer, tensor), PATIENCE_SECONDS)

    assert same_bits(fetched.tensor, tensor)


def test_two_widths_at_once_do_not_mix(pair: Pair) -> None:
    tensors = [random_tensor(torch.float32, shape) for shape in ((9, 64), (4, 192), (9, 64))]
    refs = [pair.peer.reserve(tensor.dtype, tuple(tensor.shape)) for tensor in tensors]
    for ref, tensor in reversed(list(zip(refs, tensors, strict=True))):
        pair.peer.publish(ref, tensor)

    for ref, tensor in zip(refs, tensors, strict=True):
        assert same_bits(pair.consumer.fetch(ref, PATIENCE_SECONDS).tensor, tensor)


def test_note_travels_with_the_tensor(pair: Pair) -> None:
    note = bytes(range(256)) * 4

    fetched = pair.consumer.fetch(published(pair.peer, torch.zeros(2, 2), note), PATIENCE_SECONDS)

    assert fetched.note == note


def test_note_over_a_kibibyte_is_refused(pair: Pair) -> None:
    ref = pair.peer.reserve(torch.float32, (2, 2))

    with pytest.raises(ValueError, match="1024"):
        pair.peer.publish(ref, torch.zeros(2, 2), b"x" * 1025)


@pytest.mark.parametrize("tensor", [torch.zeros(2, 3), torch.zeros(2, 2, dtype=torch.float16)], ids=str)
def test_tensor_other_than_reserved_is_refused_and_the_right_one_still_fits(
    pair: Pair, tensor: torch.Tensor
) -> None:
    ref = pair.peer.reserve(torch.float32, (2, 2))

    with pytest.raises(ValueError, match="reserved float32"):
        pair.peer.publish(ref, tensor)

    pair.peer.publish(ref, torch.ones(2, 2))
    assert same_bits(pair.consumer.fetch(ref, PATIENCE_SECONDS).tensor, torch.ones(2, 2))


def test_fetched_tensor_is_the_readers_own(pair: Pair) -> None:
    ref = published(pair.peer, torch.zeros(4, 4))

    pair.consumer.fetch(ref, PATIENCE_SECONDS).tensor.fill_(7)

    assert same_bits(pair.consumer.fetch(ref, PATIENCE_SECONDS).tensor, torch.zeros(4, 4))


@pytest.mark.parametrize(
    "forge",
    [
        lambda ref: msgspec.structs.replace(ref, lease_id="0" * 32),
        lambda ref: msgspec.structs.replace(ref, key="another"),
        lambda ref: msgspec.structs.replace(ref, namespace="another"),
        lambda ref: msgspec.structs.replace(ref, incarnation="0" * 32),
        lambda ref: msgspec.structs.replace(ref, generation=ref.generation + 1),
        lambda ref: msgspec.structs.replace(ref, generation=ref.generation - 1),
        lambda ref: msgspec.structs.replace(ref, address="triptych-nobody"),
        lambda ref: msgspec.structs.replace(ref, shape=(4, 5)),
        lambda ref: msgspec.structs.replace(ref, dtype="float16"),
        lambda ref: msgspec.structs.replace(ref, dtype="object"),
    ],
    ids=["lease", "key", "namespace", "incarnation", "later", "stale", "address", "shape", "dtype", "object"],
)
def test_reference_that_does_not_fit_is_unavailable_and_harms_nothing(
    pair: Pair, forge: Callable[[TensorRef], TensorRef]
) -> None:
    ref = published(pair.peer, torch.ones(4, 4))

    with pytest.raises(EmbeddingUnavailable):
        pair.consumer.fetch(forge(ref), PATIENCE_SECONDS)

    assert same_bits(pair.consumer.fetch(ref, PATIENCE_SECONDS).tensor, torch.ones(4, 4))


def test_not_ready_in_time_then_ready(pair: Pair) -> None:
    ref = pair.peer.reserve(torch.float32, (4, 4))
    with pytest.raises(DeadlineExceeded):
        pair.consumer.fetch(ref, SOON_SECONDS)

    pair.peer.publish(ref, torch.ones(4, 4))

    assert same_bits(pair.consumer.fetch(ref, PATIENCE_SECONDS).tensor, torch.ones(4, 4))


def test_waiting_readers_are_woken(pair: Pair) -> None:
    ref = pair.peer.reserve(torch.float32, (4, 4))
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(pair.consumer.fetch, ref, PATIENCE_SECONDS) for _ in range(4)]
        pair.peer.publish(ref, torch.ones(4, 4), b"note")

        for fetched in [future.result(PATIENCE_SECONDS) for future in waiting]:
            assert same_bits(fetched.tensor, torch.ones(4, 4))
            assert fetched.note == b"note"


def test_reader_of_a_ready_tensor_did_not_wait_for_it(pair: Pair) -> None:
    ref = published(pair.peer, torch.ones(4, 4))

    assert pair.consumer.fetch(ref, PATIENCE_SECONDS).waited_seconds < 1


@pytest.mark.parametrize("code", sorted({cls.code for cls in all_error_classes()}))
def test_failure_arrives_as_the_error_that_the_producer_reported(pair: Pair, code: str) -> None:
    ref = pair.peer.reserve(torch.float32, (4, 4))
    expected = error_from_code(code, "it says why")

    pair.peer.fail(ref, code, "it says why")

    with pytest.raises(type(expected), match="it says why") as caught:
        pair.consumer.fetch(ref, PATIENCE_SECONDS)
    assert type(caught.value) is type(expected)
    assert pair.peer.usage().used_bytes == 0


def test_failure_wakes_waiting_readers(pair: Pair) -> None:
    ref = pair.peer.reserve(torch.float32, (4, 4))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pair.consumer.fetch, ref, PATIENCE_SECONDS)
        pair.peer.fail(ref, "media_invalid", "broken bytes")

        with pytest.raises(MediaInvalid, match="broken bytes"):
            waiting.result(PATIENCE_SECONDS)


def test_failing_is_idempotent_and_cannot_undo_a_publication(pair: Pair) -> None:
    failed = pair.peer.reserve(torch.float32, (4, 4))
    ready = published(pair.peer, torch.ones(4, 4))

    pair.peer.fail(failed, "media_invalid", "first")
    pair.peer.fail(failed, "internal", "second")
    pair.peer.publish(failed, torch.ones(4, 4))
    pair.peer.fail(ready, "internal", "too late")

    with pytest.raises(MediaInvalid, match="first"):
        pair.consumer.fetch(failed, PATIENCE_SECONDS)
    assert same_bits(pair.consumer.fetch(ready, PATIENCE_SECONDS).tensor, torch.ones(4, 4))


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
