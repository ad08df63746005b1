from __future__ import annotations

from collections.abc import Callable

import pytest

from triptych.api.openai.fields import Fields, Json, decode_json
from triptych.errors import InvalidRequest


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": 1e999}',
        b'{"a": "\xff"}',
        b'{"a": "\\ud800"}',
        b"{}x",
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
    ],
)
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_json(body)


READS: list[tuple[Callable[[Fields], object], Json, str]] = [
    (lambda f: f.text("x"), 1, "at.x must be a string"),
    (lambda f: f.required_text("x"), None, "at.x must be a string"),
    (lambda f: f.integer("x"), True, "at.x must be an integer"),
    (lambda f: f.integer("x"), 1.5, "at.x must be an integer"),
    (lambda f: f.integer("x"), "1", "at.x must be an integer"),
    (lambda f: f.number("x"), False, "at.x must be a number"),
    (lambda f: f.number("x"), 10**400, "at.x must be a number of ordinary size"),
    (lambda f: f.flag("x"), 1, "at.x must be true or false"),
    (lambda f: f.object("x"), [], "at.x must be an object"),
    (lambda f: list(f.elements("x")), {}, "at.x must be a list"),
]


@pytest.mark.parametrize(("read", "value", "message"), READS)
def test_wrong_types_are_refused_by_name(read: Callable[[Fields], object], value: Json, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(Fields({"x": value}, "at"))
    assert (caught.value.message, caught.value.param) == (message, "at.x")


def test_null_counts_as_absent() -> None:
    fields = Fields({"x": None})
    assert not fields.has("x")
    assert (fields.text("x"), fields.integer("x"), fields.number("x"), fields.object("x")) == (None,) * 4
    assert fields.flag("x") is False
    assert list(fields.elements("x")) == []


def test_an_integer_is_a_number() -> None:
    assert Fields({"x": 1}).number("x") == 1.0
