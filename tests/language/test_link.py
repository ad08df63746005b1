from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from triptych.language.link import FrameSplitter, frame
from triptych.messages import Cancel, EngineInbox

MESSAGES = st.lists(st.text(max_size=20).map(lambda name: Cancel(request_id=name)), max_size=6)


@given(MESSAGES, st.integers(1, 9))
def test_frames_are_found_however_the_stream_is_chopped(messages: list[Cancel], size: int) -> None:
    stream = b"".join(frame(message) for message in messages)
    splitter = FrameSplitter()
    bodies = [
        body for begin in range(0, len(stream), size) for body in splitter.feed(stream[begin : begin + size])
    ]
    assert [msgspec.msgpack.decode(body, type=EngineInbox) for body in bodies] == messages
