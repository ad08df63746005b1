from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.language.text import TextStream

PIECES = st.sampled_from(
    [b"a", b"b", b"ab", "é".encode(), "€".encode(), "😀".encode(), b"\xff", b"\xf0\x9f", b"\xe2"]
)
CONTENT = st.lists(st.one_of(PIECES, st.binary(max_size=4)), max_size=12).map(b"".join)
STOPS = st.lists(st.text("abé€😀\ufffd", min_size=1, max_size=4), max_size=4)
CUTS = st.lists(st.integers(0, 60), max_size=10)


def streamed(chunks: Sequence[bytes], stop: Sequence[str]) -> tuple[list[str], bool]:
    stream = TextStream(stop)
    parts: list[str] = []
    stopped = False
    for chunk in chunks:
        text, stopped = stream.feed(chunk)
        parts.append(text)
    return [*parts, stream.flush()], stopped


def cut(content: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = [0, *sorted(min(place, len(content)) for place in cuts), len(content)]
    return [content[a:b] for a, b in itertools.pairwise(places)]


@given(CONTENT, CUTS)
def test_any_split_decodes_like_the_whole(content: bytes, cuts: list[int]) -> None:
    parts, stopped = streamed(cut(content, cuts), ())
    assert "".join(parts) == content.decode(errors="replace")
    assert not stopped


@given(CONTENT, CUTS, STOPS)
def test_any_split_stops_at_the_same_place(content: bytes, cuts: list[int], stop: list[str]) -> None:
    whole = content.decode(errors="replace")
    ends = [(whole.find(s) + len(s), whole.find(s)) for s in stop if s in whole]
    parts, _ = streamed(cut(content, cuts), stop)
    assert "".join(parts) == (whole[: min(ends)[1]] if ends else whole)


@given(CONTENT, STOPS)
def test_no_stop_string_is_ever_in_the_text(content: bytes, stop: list[str]) -> None:
    parts, _ = streamed([bytes([byte]) for byte in content], stop)
    assert not any(s in "".join(parts) for s in stop)


def test_possible_stop_is_held_back_until_it_is_none() -> None:
    stream = TextStream(("STOP",))
    assert stream.feed(b"go ST") == ("go ", False)
    assert stream.feed(b"AY") == ("STAY", False)
    assert stream.feed(b"STO") == ("", False)
    assert stream.feed(b"P more") == ("", True)
    assert stream.feed(b"later") == ("", True)
    assert stream.flush() == ""


def test_flush_gives_what_was_held_and_the_broken_character() -> None:
    stream = TextStream(("STOP",))
    assert stream.feed(b"ST\xe2\x82") == ("", False)
    assert stream.flush() == "ST\ufffd"
    assert stream.flush() == ""


@pytest.mark.parametrize(("stop", "text"), [(("abcd", "bc"), "a"), (("bc", "abc"), ""), (("c", "bc"), "a")])
def test_stop_that_completes_first_wins_then_the_longest(stop: tuple[str, ...], text: str) -> None:
    assert "".join(streamed([b"abcd"], stop)[0]) == text
