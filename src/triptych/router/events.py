"""Server-sent events in a byte stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

END = b"\n\n"
MAX_HELD_BYTES = 1024 * 1024


async def whole_events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """The same bytes, cut between events: if the source dies, half an event has not been passed on.

    An event of more than `MAX_HELD_BYTES` is passed on in pieces.
    """
    held = b""
    async for chunk in chunks:
        held += chunk
        cut = held.rfind(END) + len(END)
        if cut >= len(END):
            yield held[:cut]
            held = held[cut:]
        if len(held) > MAX_HELD_BYTES:
            yield held
            held = b""
    if held:
        yield held
