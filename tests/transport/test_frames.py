from __future__ import annotations

import pytest

from triptych.transport.frames import (
    Challenge,
    Done,
    Fetch,
    FrameError,
    FromConsumer,
    FromProducer,
    Granted,
    Hello,
    Refused,
    Release,
    Welcome,
    decode_from_consumer,
    decode_from_producer,
    encode,
)
from triptych.transport.slots import Claim

CLAIM = Claim("lease", "key", "ns", "incarnation", 3)


@pytest.mark.parametrize(
    "frame",
    [
        Hello(proof=b"p", nonce=b"n"),
        Fetch(request=1, claim=CLAIM, remaining_ms=5),
        Done(request=1),
        Release(claim=CLAIM),
    ],
    ids=lambda frame: type(frame).__name__,
)
def test_consumers_frames_come_back(frame: FromConsumer) -> None:
    assert decode_from_consumer(encode(frame)) == frame


@pytest.mark.parametrize(
    "frame",
    [
        Challenge(nonce=b"n"),
        Welcome(proof=b"p", slab_bytes=4096),
        Granted(request=1, offset=64, size_bytes=10, note=b"note", waited_ms=1.5),
        Refused(request=1, code="internal", message="why"),
    ],
    ids=lambda frame: type(frame).__name__,
)
def test_producers_frames_come_back(frame: FromProducer) -> None:
    assert decode_from_producer(encode(frame)) == frame


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x80", encode(Challenge(nonce=b"n"))])
def test_what_no_consumer_says_is_a_frame_error(data: bytes) -> None:
    with pytest.raises(FrameError):
        decode_from_consumer(data)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x80", encode(Done(request=1))])
def test_what_no_producer_says_is_a_frame_error(data: bytes) -> None:
    with pytest.raises(FrameError):
        decode_from_producer(data)
