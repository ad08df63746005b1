"""An item's metadata between JSON (names → nested numeric lists) and `MetadataArray`s."""

from __future__ import annotations

import math
from typing import TypeAlias

from triptych.api.openai.fields import Fields, Json, wrong
from triptych.messages import Metadata, MetadataArray

Nested: TypeAlias = "int | float | list[Nested]"

MAX_DEPTH = 8
MAX_VALUES = 65_536
"""Numbers in one array: timestamps of every frame are the longest that models use."""


def parse_metadata(fields: Fields) -> Metadata:
    """Arrays sorted by name; a bare number has shape ().

    Raises:
        InvalidRequest: a value is no number, or a list is ragged, too deep or too long.
    """
    return tuple(_parse_array(name, fields.values[name], fields.at(name)) for name in sorted(fields.values))


def _parse_array(name: str, value: Json, path: str) -> MetadataArray:
    shape = _shape(value, path)
    values: list[int | float] = []
    _flatten(value, shape, path, values)
    return MetadataArray(name=name, shape=shape, values=tuple(values))


def _shape(value: Json, path: str) -> tuple[int, ...]:
    shape: list[int] = []
    while isinstance(value, list):
        shape.append(len(value))
        if len(shape) > MAX_DEPTH or math.prod(shape) > MAX_VALUES:
            raise wrong(path, f"an array of at most {MAX_DEPTH} dimensions and {MAX_VALUES} numbers")
        if not value:
            break
        value = value[0]
    return tuple(shape)


def _flatten(value: Json, shape: tuple[int, ...], path: str, into: list[int | float]) -> None:
    if shape:
        if not isinstance(value, list) or len(value) != shape[0]:
            raise wrong(path, "an array whose rows have equal lengths")
        for element in value:
            _flatten(element, shape[1:], path, into)
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(path, "a number or an array of numbers")
    into.append(value)


def nested_metadata(metadata: Metadata) -> dict[str, Nested]:
    """The JSON form: `{"image_grid_thw": [[1, 4, 4]]}`."""
    return {array.name: _nest(array.values, array.shape) for array in metadata}


def _nest(values: tuple[int | float, ...], shape: tuple[int, ...]) -> Nested:
    if not shape:
        return values[0]
    stride = math.prod(shape[1:])
    return [_nest(values[row * stride : (row + 1) * stride], shape[1:]) for row in range(shape[0])]
