from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from triptych.errors import WorkerUnavailable
from triptych.router.events import MAX_HELD_BYTES, whole_events


def cut(*chunks: bytes | Exception) -> list[bytes]:
    """What got through, up to a failure of the source."""
    passed: list[bytes] = []

    async def source() -> AsyncGenerator[bytes]:
        for chunk in chunks:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    async def read() -> None:
        async for event in whole_events(source()):
            passed.append(event)

    if any(isinstance(chunk, Exception) for chunk in chunks):
        with pytest.raises(WorkerUnavailable):
            asyncio.run(read())
    else:
        asyncio.run(read())
    return passed


def test_events_are_not_torn() -> None:
    assert cut(b"data: 1\n\nda", b"ta: 2\n", b"\ndata: 3\n\n") == [b"data: 1\n\n", b"data: 2\n\ndata: 3\n\n"]


def test_half_an_event_is_dropped_when_the_source_dies() -> None:
    assert cut(b"data: 1\n\ndata: {", WorkerUnavailable("died")) == [b"data: 1\n\n"]


def test_nothing_is_lost_at_the_end_or_when_there_are_no_events() -> None:
    assert cut(b"data: 1\n\nrest") == [b"data: 1\n\n", b"rest"]
    huge = b"x" * (MAX_HELD_BYTES + 1)
    assert cut(huge, b"y") == [huge, b"y"]
