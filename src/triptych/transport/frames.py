"""What the two ends of a shared-memory connection say. One msgpack frame a packet (SOCK_SEQPACKET).

consumer                           producer
   │ ◀───────────── Challenge ───────│  on connect
   │──────────────── Hello ─────────▶│
   │ ◀── Welcome + descriptor ───────│  the slab, once per connection
   │──────────────── Fetch ─────────▶│  any number at a time, told apart by `request`
   │ ◀──────── Granted | Refused ────│  when ready; the slot is pinned from Granted on
   │──────────────── Done ──────────▶│  unpins, or gives up waiting; no reply
   │─────────────── Release ────────▶│  frees the slot; no reply
"""

from __future__ import annotations

import msgspec

from triptych.transport.slots import Claim

MAX_FRAME_BYTES = 64 * 1024


class FrameError(Exception):
    """The peer sent what is no frame, or a frame that does not belong there. Never leaves this package."""


class Challenge(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    nonce: bytes


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`proof` answers the producer's nonce; `nonce` is for the producer to prove itself on."""

    proof: bytes
    nonce: bytes


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    proof: bytes
    slab_bytes: int


class Fetch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    request: int
    claim: Claim
    remaining_ms: int


class Granted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Bytes [offset, offset + size_bytes) of the slab are the tensor until Done."""

    request: int
    offset: int
    size_bytes: int
    note: bytes
    waited_ms: float


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`code` is one of `errors`."""

    request: int
    code: str
    message: str


class Done(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    request: int


class Release(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    claim: Claim


FromConsumer = Hello | Fetch | Done | Release
FromProducer = Challenge | Welcome | Granted | Refused

_encoder = msgspec.msgpack.Encoder()
_from_consumer = msgspec.msgpack.Decoder(FromConsumer)
_from_producer = msgspec.msgpack.Decoder(FromProducer)


def encode(frame: FromConsumer | FromProducer) -> bytes:
    return _encoder.encode(frame)


def decode_from_consumer(data: bytes) -> FromConsumer:
    """
    Raises:
        FrameError: not a frame of a consumer.
    """
    try:
        return _from_consumer.decode(data)
    except msgspec.MsgspecError as error:
        raise FrameError(str(error)) from error


def decode_from_producer(data: bytes) -> FromProducer:
    """
    Raises:
        FrameError: not a frame of a producer.
    """
    try:
        return _from_producer.decode(data)
    except msgspec.MsgspecError as error:
        raise FrameError(str(error)) from error
