"""Messages over the stream between the front and its engine: 4 bytes of length (big-endian), then msgpack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from triptych.messages import EngineInbox, EngineOutbox

_LENGTH_BYTES: Final = 4


def frame(message: EngineInbox | EngineOutbox) -> bytes:
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


class FrameSplitter:
    """Cuts a byte stream into the bodies of its frames, however the stream is chopped."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies that `data` completes."""
        self._pending += data
        begin = 0
        while len(self._pending) >= begin + _LENGTH_BYTES:
            body = begin + _LENGTH_BYTES
            end = body + int.from_bytes(self._pending[begin:body], "big")
            if len(self._pending) < end:
                break
            yield bytes(self._pending[body:end])
            begin = end
        del self._pending[:begin]
