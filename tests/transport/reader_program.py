"""What runs in a reader's process of its own: it borrows one tensor and keeps it until told."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection

import msgspec

from triptych.messages import TensorRef
from triptych.transport.shm_connection import dial

BORROWED = b"borrowed"
RETURN = b"return"


def borrow(pipe: Connection, ref: bytes, token: bytes, patience_seconds: float) -> None:
    """Says BORROWED, waits for RETURN, answers with the bytes that it sees then."""
    decoded = msgspec.msgpack.decode(ref, type=TensorRef)
    deadline_at = time.monotonic() + patience_seconds
    connection = dial(decoded.address, token, deadline_at)
    with connection.borrow(decoded, deadline_at) as borrowed:
        pipe.send_bytes(BORROWED)
        assert pipe.recv_bytes() == RETURN
        seen = borrowed.memory.tobytes()
        del borrowed
    connection.close()
    pipe.send_bytes(seen)
