from __future__ import annotations

import math
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.api.openai.fields import Fields, Json
from triptych.api.openai.metadata import MAX_VALUES, nested_metadata, parse_metadata
from triptych.errors import InvalidRequest
from triptych.messages import MetadataArray


def test_nested_and_flat_arrays_and_numbers_are_sorted_by_name() -> None:
    found = parse_metadata(Fields({"z": [[1, 4, 4]], "flat": [1, 4, 4], "num": 2.5}))
    assert found == (
        MetadataArray(name="flat", shape=(3,), values=(1, 4, 4)),
        MetadataArray(name="num", shape=(), values=(2.5,)),
        MetadataArray(name="z", shape=(1, 3), values=(1, 4, 4)),
    )


@pytest.mark.parametrize(
    ("value", "must"),
    [
        ("abc", "a number or an array of numbers"),
        (True, "a number or an array of numbers"),
        (None, "a number or an array of numbers"),
        ([1, "a"], "a number or an array of numbers"),
        ([[1, 2], [3]], "an array whose rows have equal lengths"),
        ([[1], 2], "an array whose rows have equal lengths"),
        ([[], [1]], "an array whose rows have equal lengths"),
        ([1] * (MAX_VALUES + 1), "an array of at most"),
        ([[[[[[[[[1]]]]]]]]], "an array of at most"),
    ],
)
def test_what_is_no_numeric_array_is_refused_by_name(value: Json, must: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_metadata(Fields({"grid": value}, "image_embeds"))
    assert caught.value.message.startswith(f"image_embeds.grid must be {must}")


@given(st.lists(st.integers(0, 4), max_size=4), st.data())
def test_the_json_form_comes_back_the_same(shape: list[int], data: st.DataObject) -> None:
    # Behind an empty dimension nothing shows the others.
    shape = shape[: shape.index(0) + 1] if 0 in shape else shape
    numbers = st.one_of(st.integers(-(2**40), 2**40), st.floats(allow_nan=False, allow_infinity=False))
    size = math.prod(shape)
    values = data.draw(st.lists(numbers, min_size=size, max_size=size))
    array = MetadataArray(name="a", shape=tuple(shape), values=tuple(values))
    nested = cast("dict[str, Json]", nested_metadata((array,)))
    assert parse_metadata(Fields(nested)) == (array,)
