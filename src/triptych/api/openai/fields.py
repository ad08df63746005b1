"""Typed reads from decoded JSON, with errors that name the field: "messages[1].content must be a string"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias, cast

import msgspec

from triptych.errors import InvalidRequest

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


def decode_json(body: bytes) -> Json:
    """JSON → Python; NaN, infinities, lone surrogates and trailing text are no JSON.

    Raises:
        InvalidRequest: the body is not JSON, or nested too deep.
    """
    try:
        return cast(Json, msgspec.json.decode(body))
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise InvalidRequest("the body is nested too deep") from error


def wrong(path: str, must: str) -> InvalidRequest:
    return InvalidRequest(f"{path} must be {must}", param=path)


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object and where it stands. In every read null counts as absent, and a bool is no number.

    Every method raises InvalidRequest, naming the field, if the value has another type.
    """

    values: dict[str, Json]
    path: str = ""

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def text(self, name: str) -> str | None:
        return as_text(self.values.get(name), self.at(name)) if self.has(name) else None

    def required_text(self, name: str) -> str:
        return as_text(self.values.get(name), self.at(name))

    def integer(self, name: str) -> int | None:
        return as_integer(self.values.get(name), self.at(name)) if self.has(name) else None

    def number(self, name: str) -> float | None:
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong(self.at(name), "a number")
        try:
            return float(value)
        except OverflowError as error:
            raise wrong(self.at(name), "a number of ordinary size") from error

    def flag(self, name: str) -> bool:
        """False if absent."""
        value = self.values.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise wrong(self.at(name), "true or false")
        return value

    def object(self, name: str) -> Fields | None:
        return as_object(self.values.get(name), self.at(name)) if self.has(name) else None

    def elements(self, name: str) -> Iterator[tuple[str, Json]]:
        """(path, value) of every element of an array; none if absent."""
        value = self.values.get(name)
        if value is None:
            return
        if not isinstance(value, list):
            raise wrong(self.at(name), "a list")
        for position, element in enumerate(value):
            yield f"{self.at(name)}[{position}]", element


def as_text(value: Json, path: str) -> str:
    if not isinstance(value, str):
        raise wrong(path, "a string")
    return value


def as_integer(value: Json, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(path, "an integer")
    return value


def as_object(value: Json, path: str) -> Fields:
    if not isinstance(value, dict):
        raise wrong(path or "the body", "an object")
    return Fields(value, path)
