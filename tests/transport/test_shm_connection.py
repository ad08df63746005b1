"""The consumer's end, against a producer that misbehaves."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.transport.peers import PATIENCE_SECONDS, TOKEN
from triptych.errors import DeadlineExceeded, EmbeddingUnavailable
from triptych.messages import TensorRef
from triptych.transport import handshake
from triptych.transport.frames import (
    Challenge,
    Done,
    Fetch,
    Granted,
    Hello,
    Refused,
    Welcome,
    decode_from_consumer,
    encode,
)
from triptych.transport.shm_connection import ShmConnection, dial
from triptych.transport.slab import Slab, make_slab

REF = TensorRef(
    key="key",
    namespace="ns",
    dtype="uint8",
    shape=(64,),
    size_bytes=64,
    transport="shm",
    address="",
    lease_id="lease",
    incarnation="incarnation",
    generation=1,
)
Play = Callable[[socket.socket], None]


@pytest.fixture
def slab() -> Iterator[Slab]:
    slab = make_slab(4096)
    yield slab
    slab.close()


@pytest.fixture
def impostor() -> Iterator[Callable[[Play], str]]:
    """Listens, lets one caller in, plays, and hangs up. Gives the address."""
    threads: list[threading.Thread] = []

    def start(play: Play) -> str:
        address = f"triptych-test-{secrets.token_hex(8)}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.settimeout(PATIENCE_SECONDS)
        listener.bind("\0" + address)
        listener.listen()

        def run() -> None:
            with listener, listener.accept()[0] as connection:
                connection.settimeout(PATIENCE_SECONDS)
                play(connection)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return address

    yield start
    for thread in threads:
        thread.join(PATIENCE_SECONDS)


def soon(seconds: float = PATIENCE_SECONDS) -> float:
    return time.monotonic() + seconds


def welcome(connection: socket.socket, slab: Slab, token: bytes = TOKEN) -> None:
    connection.send(encode(Challenge(nonce=b"n")))
    hello = decode_from_consumer(connection.recv(65536))
    assert isinstance(hello, Hello)
    proof = handshake.proof(token, "producer", hello.nonce)
    frame = encode(Welcome(proof=proof, slab_bytes=slab.memory.nbytes))
    socket.send_fds(connection, [frame], [slab.fd])


def next_fetch(connection: socket.socket) -> Fetch:
    fetch = decode_from_consumer(connection.recv(65536))
    assert isinstance(fetch, Fetch)
    return fetch


def wait_for_end(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def borrow(connection: ShmConnection, deadline_at: float) -> bytes:
    with connection.borrow(REF, deadline_at) as borrowed:
        return borrowed.memory.tobytes()


def test_nobody_there_is_unavailable() -> None:
    with pytest.raises(EmbeddingUnavailable, match="triptych-nobody"):
        dial("triptych-nobody", TOKEN, soon())


def test_no_time_left_is_a_deadline() -> None:
    with pytest.raises(DeadlineExceeded):
        dial("triptych-nobody", TOKEN, soon(-1))


@pytest.mark.parametrize(
    "play",
    [
        lambda connection: None,
        lambda connection: connection.send(b"\xc1"),
        lambda connection: connection.send(encode(Refused(request=1, code="internal", message=""))),
    ],
    ids=["hangs up", "no frame", "another frame"],
)
def test_who_is_no_producer_is_unavailable(impostor: Callable[[Play], str], play: Play) -> None:
    with pytest.raises(EmbeddingUnavailable):
        dial(impostor(play), TOKEN, soon())


def test_producer_without_our_token_is_not_believed(impostor: Callable[[Play], str], slab: Slab) -> None:
    with pytest.raises(EmbeddingUnavailable, match="token"):
        dial(impostor(lambda connection: welcome(connection, slab, b"other")), TOKEN, soon())


def test_silent_producer_costs_the_deadline(impostor: Callable[[Play], str]) -> None:
    with pytest.raises(DeadlineExceeded):
        dial(impostor(wait_for_end), TOKEN, soon(0.1))


def test_memory_outside_the_slab_is_not_read(impostor: Callable[[Play], str], slab: Slab) -> None:
    def play(connection: socket.socket) -> None:
        welcome(connection, slab)
        request = next_fetch(connection).request
        grant = Granted(request=request, offset=4096 - 32, size_bytes=64, note=b"", waited_ms=0)
        connection.send(encode(grant))
        wait_for_end(connection)

    connection = dial(impostor(play), TOKEN, soon())

    with pytest.raises(EmbeddingUnavailable, match="does not have"):
        borrow(connection, soon())
    connection.close()


def test_frame_that_is_none_ends_the_connection_and_its_fetches(
    impostor: Callable[[Play], str], slab: Slab
) -> None:
    def play(connection: socket.socket) -> None:
        welcome(connection, slab)
        next_fetch(connection)
        connection.send(b"\xc1")
        wait_for_end(connection)

    connection = dial(impostor(play), TOKEN, soon())

    with pytest.raises(EmbeddingUnavailable, match="protocol"):
        borrow(connection, soon())
    assert connection.broken
    with pytest.raises(EmbeddingUnavailable, match="protocol"):
        borrow(connection, soon())
    connection.close()


def test_every_fetch_says_done_after_a_timeout_too(impostor: Callable[[Play], str], slab: Slab) -> None:
    said: list[object] = []
    over = threading.Event()

    def play(connection: socket.socket) -> None:
        welcome(connection, slab)
        while data := connection.recv(65536):
            said.append(decode_from_consumer(data))
        over.set()

    connection = dial(impostor(play), TOKEN, soon())
    with pytest.raises(DeadlineExceeded):
        borrow(connection, soon(0.01))
    with pytest.raises(DeadlineExceeded):
        borrow(connection, soon(0.01))
    connection.close()
    assert over.wait(PATIENCE_SECONDS)

    assert [frame.request for frame in said if isinstance(frame, Fetch)] == [1, 2]
    assert [frame.request for frame in said if isinstance(frame, Done)] == [1, 2]


def test_answers_go_to_the_fetch_that_asked(impostor: Callable[[Play], str], slab: Slab) -> None:
    slab.memory[:64] = 1
    slab.memory[64:128] = 2

    def play(connection: socket.socket) -> None:
        welcome(connection, slab)
        fetches = sorted((next_fetch(connection) for _ in range(2)), key=lambda fetch: fetch.request)
        for offset, fetch in reversed(list(zip((0, 64), fetches, strict=True))):
            grant = Granted(request=fetch.request, offset=offset, size_bytes=64, note=b"", waited_ms=0)
            connection.send(encode(grant))
        wait_for_end(connection)

    connection = dial(impostor(play), TOKEN, soon())
    with ThreadPoolExecutor(2) as threads:
        seen = [threads.submit(borrow, connection, soon()) for _ in range(2)]

        assert {future.result(PATIENCE_SECONDS) for future in seen} == {b"\x01" * 64, b"\x02" * 64}
    connection.close()


def test_socket_stays_open_while_somebody_reads(impostor: Callable[[Play], str], slab: Slab) -> None:
    over = threading.Event()

    def play(connection: socket.socket) -> None:
        welcome(connection, slab)
        request = next_fetch(connection).request
        grant = Granted(request=request, offset=0, size_bytes=64, note=b"", waited_ms=0)
        connection.send(encode(grant))
        connection.send(b"\xc1")  # the consumer breaks the connection off
        wait_for_end(connection)
        over.set()

    connection = dial(impostor(play), TOKEN, soon())
    with connection.borrow(REF, soon()) as borrowed:
        while not connection.broken:
            assert not over.wait(0.01)
        assert not over.is_set()
        assert borrowed.memory.tobytes() == bytes(64)
        del borrowed

    assert over.wait(PATIENCE_SECONDS)
    connection.close()
