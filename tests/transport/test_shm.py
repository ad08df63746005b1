"""What can only go wrong between processes: deaths, freezes, and memory under a reader that does not move."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch

from tests.transport import reader_program
from tests.transport.peers import (
    CONFIG,
    PATIENCE_SECONDS,
    TOKEN,
    ShmPeer,
    eventually,
    num_descriptors,
    process_state,
    processes,
)
from triptych.errors import ConfigError, DeadlineExceeded, EmbeddingUnavailable, QueueFull
from triptych.messages import TensorRef
from triptych.transport.interface import Producer
from triptych.transport.shm import ShmConsumer, ShmProducer

SOON_SECONDS = 0.2


@pytest.fixture
def start_peer() -> Iterator[Callable[[], ShmPeer]]:
    started: list[ShmPeer] = []

    def start(address: str | None = None) -> ShmPeer:
        started.append(ShmPeer(address=address))
        return started[-1]

    yield start
    for peer in started:
        peer.stop()


@pytest.fixture
def peer(start_peer: Callable[[], ShmPeer]) -> ShmPeer:
    return start_peer()


@pytest.fixture
def consumer() -> Iterator[ShmConsumer]:
    consumer = ShmConsumer(CONFIG, TOKEN)
    yield consumer
    consumer.close()


class Reader:
    """A process that borrows one tensor and holds it."""

    def __init__(self, ref: TensorRef) -> None:
        context = processes()
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, msgspec.msgpack.encode(ref), TOKEN, PATIENCE_SECONDS)
        self.process = context.Process(target=reader_program.borrow, args=arguments)
        self.process.start()
        theirs.close()
        assert self._next() == reader_program.BORROWED

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def give_back(self) -> bytes:
        """What it sees at the end of its borrowing."""
        self.pipe.send_bytes(reader_program.RETURN)
        return self._next()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(PATIENCE_SECONDS)
        self.pipe.close()

    def _next(self) -> bytes:
        assert self.pipe.poll(PATIENCE_SECONDS), "the reader process does not answer"
        return self.pipe.recv_bytes()


@pytest.fixture
def start_reader() -> Iterator[Callable[[TensorRef], Reader]]:
    started: list[Reader] = []

    def start(ref: TensorRef) -> Reader:
        started.append(Reader(ref))
        return started[-1]

    yield start
    for reader in started:
        reader.kill()


def published(peer: ShmPeer, num_bytes: int, value: int = 1) -> TensorRef:
    ref = peer.reserve(torch.uint8, (num_bytes,))
    peer.publish(ref, torch.full((num_bytes,), value, dtype=torch.uint8))
    return ref


def test_killed_producer_is_unavailable_at_once(peer: ShmPeer, consumer: ShmConsumer) -> None:
    known, unknown = published(peer, 64), published(peer, 64)
    consumer.fetch(known, PATIENCE_SECONDS)

    peer.kill()

    for ref in (known, unknown):
        with pytest.raises(EmbeddingUnavailable):
            consumer.fetch(ref, PATIENCE_SECONDS)
    with pytest.raises(EmbeddingUnavailable):
        ShmConsumer(CONFIG, TOKEN).fetch(known, PATIENCE_SECONDS)


def test_producer_killed_while_readers_wait_ends_their_wait(peer: ShmPeer, consumer: ShmConsumer) -> None:
    ref = peer.reserve(torch.uint8, (64,))
    with pytest.raises(DeadlineExceeded):  # connects
        consumer.fetch(ref, SOON_SECONDS)
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(consumer.fetch, ref, PATIENCE_SECONDS) for _ in range(4)]

        peer.kill()

        for future in waiting:
            with pytest.raises(EmbeddingUnavailable):
                future.result(PATIENCE_SECONDS)


def test_frozen_producer_costs_a_connected_reader_its_own_deadline(
    peer: ShmPeer, consumer: ShmConsumer
) -> None:
    ref = published(peer, 64)
    consumer.fetch(ref, PATIENCE_SECONDS)
    peer.freeze()

    with pytest.raises(DeadlineExceeded):
        consumer.fetch(ref, SOON_SECONDS)

    peer.thaw()
    assert consumer.fetch(ref, PATIENCE_SECONDS).tensor.sum() == 64
    eventually(lambda: peer.usage().num_pins == 0)


def test_frozen_producer_costs_a_new_reader_its_own_deadline(peer: ShmPeer, consumer: ShmConsumer) -> None:
    ref = published(peer, 64)
    peer.freeze()

    with pytest.raises(DeadlineExceeded):
        consumer.fetch(ref, SOON_SECONDS)
    consumer.release(ref)  # gives up soon, and does not raise

    peer.thaw()
    assert consumer.fetch(ref, PATIENCE_SECONDS).tensor.sum() == 64


def test_impatient_dialler_does_not_fail_a_patient_one(peer: ShmPeer, consumer: ShmConsumer) -> None:
    ref = published(peer, 64)
    peer.freeze()
    with ThreadPoolExecutor(2) as threads:
        impatient = threads.submit(consumer.fetch, ref, SOON_SECONDS)
        patient = threads.submit(consumer.fetch, ref, PATIENCE_SECONDS)
        with pytest.raises(DeadlineExceeded):
            impatient.result(PATIENCE_SECONDS)

        peer.thaw()

        assert patient.result(PATIENCE_SECONDS).tensor.sum() == 64


def test_grant_that_comes_after_the_deadline_leaves_no_pin(peer: ShmPeer, consumer: ShmConsumer) -> None:
    ref = peer.reserve(torch.uint8, (64,))
    for _ in range(20):
        with pytest.raises(DeadlineExceeded):
            consumer.fetch(ref, 0.001)
    peer.publish(ref, torch.ones(64, dtype=torch.uint8))

    consumer.fetch(ref, PATIENCE_SECONDS)

    eventually(lambda: peer.usage().num_pins == 0)


def test_killed_reader_frees_its_pins(peer: ShmPeer, start_reader: Callable[[TensorRef], Reader]) -> None:
    ref = published(peer, 64)
    reader = start_reader(ref)
    peer.withdraw(ref)
    usage = peer.usage()
    assert (usage.num_pins, usage.num_held) == (1, 1)
    assert usage.used_bytes > 0

    reader.kill()

    eventually(lambda: peer.usage().used_bytes == 0)
    assert peer.usage().num_pins == 0


def test_memory_is_not_reused_under_a_reader_whose_lease_expires(
    peer: ShmPeer, start_reader: Callable[[TensorRef], Reader]
) -> None:
    ref = published(peer, CONFIG.pool_bytes // 2, value=1)
    reader = start_reader(ref)
    peer.advance(CONFIG.lease_seconds + 1)
    published(peer, CONFIG.pool_bytes // 2, value=2)
    with pytest.raises(QueueFull):
        peer.reserve(torch.uint8, (1,))

    assert set(reader.give_back()) == {1}

    eventually(lambda: peer.usage().num_held == 0)
    peer.reserve(torch.uint8, (CONFIG.pool_bytes // 2,))


def test_frozen_reader_is_quarantined_counted_and_given_nothing_more(
    peer: ShmPeer, start_reader: Callable[[TensorRef], Reader]
) -> None:
    ref = published(peer, 4096)
    reader = start_reader(ref)
    os.kill(reader.pid, signal.SIGSTOP)
    eventually(lambda: process_state(reader.pid) == "T")

    peer.advance(CONFIG.lease_seconds + 1)
    assert peer.usage().num_quarantined == 0
    peer.advance(CONFIG.lease_seconds + 1)

    usage = peer.usage()
    assert (usage.num_quarantined, usage.quarantined_bytes, usage.quarantined_total) == (1, 4096, 1)
    os.kill(reader.pid, signal.SIGCONT)
    assert set(reader.give_back()) == {1}
    eventually(lambda: peer.usage().num_quarantined == 0)
    assert peer.usage().used_bytes == 0
    assert peer.usage().quarantined_total == 1


def test_reader_survives_its_producer_while_it_copies(
    peer: ShmPeer, start_reader: Callable[[TensorRef], Reader]
) -> None:
    reader = start_reader(published(peer, 4096))

    peer.kill()

    assert set(reader.give_back()) == {1}


def test_another_token_is_refused(peer: ShmPeer, consumer: ShmConsumer) -> None:
    ref = published(peer, 64)
    stranger = ShmConsumer(CONFIG, b"another token")

    with pytest.raises(EmbeddingUnavailable):
        stranger.fetch(ref, PATIENCE_SECONDS)

    assert consumer.fetch(ref, PATIENCE_SECONDS).tensor.sum() == 64


def test_dead_producers_leave_no_descriptors_with_their_reader(
    start_peer: Callable[[], ShmPeer], consumer: ShmConsumer
) -> None:
    def visit() -> None:
        peer = start_peer()
        consumer.fetch(published(peer, 64), PATIENCE_SECONDS)
        peer.stop()

    visit()
    before = num_descriptors(os.getpid())
    for _ in range(3):
        visit()

    eventually(lambda: num_descriptors(os.getpid()) <= before)


def test_reader_that_outlives_many_fetches_at_once_is_served_in_turn(peer: ShmPeer) -> None:
    ref = published(peer, 64)
    consumer = ShmConsumer(CONFIG, TOKEN)
    barrier = threading.Barrier(32)

    def fetch() -> int:
        barrier.wait(PATIENCE_SECONDS)
        return int(consumer.fetch(ref, PATIENCE_SECONDS).tensor.sum())

    with ThreadPoolExecutor(32) as threads:
        assert [f.result(PATIENCE_SECONDS) for f in [threads.submit(fetch) for _ in range(32)]] == [64] * 32
    consumer.close()


def test_nothing_is_left_in_any_file_system() -> None:
    code = (
        "import torch\n"
        "from triptych.config import TransportConfig\n"
        "from triptych.transport.shm import ShmConsumer, ShmProducer\n"
        "config = TransportConfig(pool_bytes=65536)\n"
        "producer, consumer = ShmProducer(config, b'token'), ShmConsumer(config, b'token')\n"
        "ref = producer.reserve('key', 'ns', torch.float32, (4,))\n"
        "producer.publish(ref, torch.ones(4))\n"
        "print(consumer.fetch(ref, 10).tensor.tolist())\n"  # and leaves without closing anything
    )
    before = set(Path("/dev/shm").iterdir())

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "[1.0, 1.0, 1.0, 1.0]\n", "")
    assert not [path for path in set(Path("/dev/shm").iterdir()) - before if "triptych" in path.name]


def test_address_in_use_is_a_config_error(peer: ShmPeer) -> None:
    with pytest.raises(ConfigError, match=peer.address):
        ShmProducer(CONFIG, TOKEN, address=peer.address)


def test_empty_token_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="token"):
        ShmProducer(CONFIG, b"")
    with pytest.raises(ConfigError, match="token"):
        ShmConsumer(CONFIG, b"")


def test_other_systems_are_refused_at_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")

    with pytest.raises(ConfigError, match="Linux"):
        ShmProducer(CONFIG, TOKEN)
    with pytest.raises(ConfigError, match="Linux"):
        ShmConsumer(CONFIG, TOKEN)


def test_fetch_waits_no_longer_than_the_transport_allows() -> None:
    config = replace(CONFIG, max_wait_seconds=SOON_SECONDS)
    producer: Producer = ShmProducer(CONFIG, TOKEN)
    consumer = ShmConsumer(config, TOKEN)
    ref = producer.reserve("key", "ns", torch.float32, (4,))

    with pytest.raises(DeadlineExceeded):
        consumer.fetch(ref, 3600)

    consumer.close()
    producer.close()
