"""The producer's end, spoken to frame by frame."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest
import torch

from tests.transport.peers import CONFIG, PATIENCE_SECONDS, TOKEN, eventually
from tests.transport.producer_program import SteppedClock
from triptych.messages import TensorRef
from triptych.transport import handshake
from triptych.transport.frames import (
    Challenge,
    Done,
    Fetch,
    FromConsumer,
    FromProducer,
    Granted,
    Hello,
    Refused,
    Release,
    Welcome,
    decode_from_producer,
    encode,
)
from triptych.transport.shm import ShmProducer
from triptych.transport.shm_server import MAX_FETCHES_PER_READER, MAX_PINS_PER_READER
from triptych.transport.slots import claim_of


@dataclass(frozen=True, slots=True)
class Stage:
    producer: ShmProducer
    clock: SteppedClock


@pytest.fixture
def stage() -> Iterator[Stage]:
    clock = SteppedClock()
    producer = ShmProducer(CONFIG, TOKEN, clock=clock)
    yield Stage(producer, clock)
    producer.close()


@pytest.fixture
def line(stage: Stage) -> Iterator[Line]:
    line = Line(stage.producer.address)
    line.introduce(TOKEN)
    yield line
    line.close()


class Line:
    """A consumer's socket."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(PATIENCE_SECONDS)
        self._socket.connect("\0" + address)
        challenge = self.next()
        assert isinstance(challenge, Challenge)
        self._challenge = challenge

    def introduce(self, token: bytes) -> None:
        proof = handshake.proof(token, "consumer", self._challenge.nonce)
        self.say(Hello(proof=proof, nonce=b"n"))
        data, fds, _, _ = socket.recv_fds(self._socket, 65536, 1)
        for fd in fds:
            os.close(fd)
        welcome = decode_from_producer(data)
        assert isinstance(welcome, Welcome)
        assert handshake.proves(welcome.proof, token, "producer", b"n")

    def say(self, *frames: FromConsumer) -> None:
        for frame in frames:
            self._socket.send(encode(frame))

    def say_raw(self, data: bytes) -> None:
        self._socket.send(data)

    def stop_when_full(self, *frames: FromConsumer) -> None:
        """Say it again and again, without listening, until the producer takes no more."""
        self._socket.settimeout(0.2)
        with suppress(TimeoutError):
            while True:
                self.say(*frames)

    def next(self) -> FromProducer:
        data = self._socket.recv(65536)
        assert data, "the producer hung up"
        return decode_from_producer(data)

    def is_over(self) -> bool:
        """Whether the producer says nothing more, ever."""
        return self._socket.recv(65536) == b""

    def close(self) -> None:
        self._socket.close()


def reserved(stage: Stage) -> TensorRef:
    return stage.producer.reserve("key", "ns", torch.float32, (16,))


def published(stage: Stage) -> TensorRef:
    ref = reserved(stage)
    stage.producer.publish(ref, torch.ones(16), b"note")
    return ref


def fetch(request: int, ref: TensorRef, remaining_ms: int = 60_000) -> Fetch:
    return Fetch(request=request, claim=claim_of(ref), remaining_ms=remaining_ms)


def granted(line: Line) -> int:
    frame = line.next()
    assert isinstance(frame, Granted), frame
    return frame.request


def refused(line: Line) -> tuple[int, str]:
    frame = line.next()
    assert isinstance(frame, Refused), frame
    return frame.request, frame.code


def test_pending_fetch_is_answered_on_publication_with_its_wait(stage: Stage, line: Line) -> None:
    ref, other = reserved(stage), reserved(stage)
    stage.producer.withdraw(other)
    line.say(fetch(1, ref), fetch(2, other))
    assert refused(line) == (2, "embedding_unavailable")  # so the first one waits by now
    stage.clock.advance(5)

    stage.producer.publish(ref, torch.ones(16), b"note")

    frame = line.next()
    assert isinstance(frame, Granted)
    assert (frame.request, frame.size_bytes, frame.note) == (1, 64, b"note")
    assert frame.waited_ms >= 5000


def test_fetch_past_its_deadline_is_refused(stage: Stage, line: Line) -> None:
    line.say(fetch(1, reserved(stage), remaining_ms=0))

    assert refused(line) == (1, "deadline_exceeded")


def test_fetch_that_was_given_up_is_not_answered(stage: Stage, line: Line) -> None:
    ref = reserved(stage)
    line.say(fetch(1, ref), Done(request=1), fetch(2, ref), fetch(3, reserved(stage), remaining_ms=0))
    assert refused(line) == (3, "deadline_exceeded")  # so the others are known by now

    stage.producer.publish(ref, torch.ones(16))

    assert granted(line) == 2


def test_reader_pins_a_few_slots_and_the_rest_wait_for_them(stage: Stage, line: Line) -> None:
    ref = published(stage)
    line.say(*(fetch(i, ref) for i in range(MAX_PINS_PER_READER + 1)))
    first = [granted(line) for _ in range(MAX_PINS_PER_READER)]
    assert stage.producer.usage().num_pins == MAX_PINS_PER_READER

    line.say(Done(request=first[0]))

    assert granted(line) == MAX_PINS_PER_READER


def test_reader_with_quarantined_memory_gets_nothing_more(stage: Stage, line: Line) -> None:
    line.say(fetch(1, published(stage)))
    granted(line)
    for _ in range(2):
        stage.clock.advance(CONFIG.lease_seconds + 1)
        stage.producer.usage()
    fresh = published(stage)

    line.say(fetch(2, fresh))
    assert refused(line) == (2, "embedding_unavailable")
    line.say(Done(request=1), fetch(3, fresh))

    assert granted(line) == 3


def test_fetches_of_one_reader_are_bounded(stage: Stage, line: Line) -> None:
    ref = reserved(stage)

    line.say(*(fetch(i, ref) for i in range(MAX_FETCHES_PER_READER + 1)))

    assert refused(line) == (MAX_FETCHES_PER_READER, "queue_full")


def test_reader_that_breaks_the_protocol_is_cut_off_but_keeps_its_pins_until_it_hangs_up(
    stage: Stage, line: Line
) -> None:
    ref = published(stage)
    line.say(fetch(1, ref))
    granted(line)

    line.say_raw(b"\xc1")

    assert line.is_over()
    stage.producer.withdraw(ref)
    assert stage.producer.usage().num_pins == 1
    line.close()
    eventually(lambda: stage.producer.usage().used_bytes == 0)


def test_request_number_used_twice_breaks_the_protocol(stage: Stage, line: Line) -> None:
    ref = reserved(stage)

    line.say(fetch(1, ref), fetch(1, ref))

    assert line.is_over()


@pytest.mark.parametrize("proof", [b"", b"x" * 32])
def test_wrong_proof_gets_no_memory(stage: Stage, proof: bytes) -> None:
    stranger = Line(stage.producer.address)

    stranger.say(Hello(proof=proof, nonce=b"n"))

    assert stranger.is_over()
    stranger.close()


def test_who_does_not_introduce_himself_cannot_release(stage: Stage) -> None:
    ref = published(stage)
    stranger = Line(stage.producer.address)

    stranger.say(Release(claim=claim_of(ref)))

    assert stranger.is_over()
    assert stage.producer.usage().num_slots == 1
    stranger.close()


def test_reader_that_does_not_read_its_answers_harms_nobody(stage: Stage, line: Line) -> None:
    ref = published(stage)
    deaf = Line(stage.producer.address)
    deaf.introduce(TOKEN)
    deaf.stop_when_full(fetch(1, ref), Done(request=1))

    line.say(fetch(1, ref))

    assert granted(line) == 1
    deaf.close()
    line.say(Done(request=1))
    eventually(lambda: stage.producer.usage().num_pins == 0)


def test_out_of_descriptors_the_caller_waits_and_is_served_later(
    stage: Stage, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = published(stage)
    refused_once = threading.Event()
    accept = socket.socket.accept

    def accept_once_more(listener: socket.socket) -> tuple[socket.socket, object]:
        if not refused_once.is_set():
            refused_once.set()
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", accept_once_more)

    late = Line(stage.producer.address)

    assert refused_once.is_set()
    late.introduce(TOKEN)
    late.say(fetch(1, ref))
    assert granted(late) == 1
    late.close()
