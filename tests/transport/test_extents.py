from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.transport.extents import ALIGNMENT_BYTES, Extent, ExtentAllocator


def take(allocator: ExtentAllocator, size_bytes: int) -> Extent:
    extent = allocator.take(size_bytes)
    assert extent is not None
    return extent


def test_extents_are_aligned_and_rounded_up() -> None:
    allocator = ExtentAllocator(1024)

    assert [take(allocator, size) for size in (1, 64, 65)] == [
        Extent(0, 64),
        Extent(64, 64),
        Extent(128, 128),
    ]
    assert allocator.used_bytes == 256


def test_empty_tensor_has_a_place_of_its_own() -> None:
    allocator = ExtentAllocator(1024)

    assert take(allocator, 0) == Extent(0, 64)
    assert take(allocator, 0) == Extent(64, 64)


def test_full_slab_has_no_more() -> None:
    allocator = ExtentAllocator(128)
    take(allocator, 128)

    assert allocator.take(0) is None


def test_capacity_below_one_unit_holds_nothing() -> None:
    assert ExtentAllocator(63).take(1) is None


def test_smallest_hole_that_fits_is_taken() -> None:
    allocator = ExtentAllocator(1024)
    large, _, small, _ = (take(allocator, size) for size in (256, 64, 128, 64))
    allocator.give_back(large)
    allocator.give_back(small)

    assert take(allocator, 100) == small
    assert take(allocator, 200) == large


def test_neighbours_coalesce_in_any_order() -> None:
    for order in ((0, 1, 2), (0, 2, 1), (2, 1, 0), (1, 0, 2)):
        allocator = ExtentAllocator(192)
        extents = [take(allocator, 64) for _ in range(3)]
        for i in order:
            allocator.give_back(extents[i])
        assert allocator.take(192) == Extent(0, 192)


def test_extent_given_back_twice_is_a_bug() -> None:
    allocator = ExtentAllocator(128)
    extent = take(allocator, 64)
    allocator.give_back(extent)

    with pytest.raises(KeyError):
        allocator.give_back(extent)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 600)), max_size=60))
def test_extents_never_overlap_and_nothing_is_lost(steps: list[tuple[bool, int]]) -> None:
    allocator = ExtentAllocator(4096)
    taken: list[Extent] = []
    for give_back, number in steps:
        if give_back and taken:
            allocator.give_back(taken.pop(number % len(taken)))
        elif (extent := allocator.take(number)) is not None:
            taken.append(extent)
        ordered = sorted(taken, key=lambda extent: extent.offset)
        assert all(left.end <= right.offset for left, right in pairwise(ordered))
        assert all(extent.offset % ALIGNMENT_BYTES == 0 and extent.end <= 4096 for extent in taken)
        assert allocator.used_bytes == sum(extent.size_bytes for extent in taken)
    for extent in taken:
        allocator.give_back(extent)
    assert allocator.take(4096) == Extent(0, 4096)
