"""Batches keep the order of the queue and the token limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from triptych.encoder.batch import batch_size, is_full


def test_items_are_taken_up_to_the_limit() -> None:
    assert batch_size([10, 20, 30, 40], 60) == 3
    assert batch_size([10, 20, 30, 40], 59) == 2
    assert batch_size([10, 20], 100) == 2


def test_item_above_the_limit_goes_alone() -> None:
    assert batch_size([100, 1], 60) == 1
    assert batch_size([1, 100, 1], 60) == 1


def test_empty_queue_makes_no_batch() -> None:
    assert batch_size([], 60) == 0
    assert not is_full([], 60)


def test_full_batch_need_not_wait() -> None:
    assert is_full([30, 30], 60)
    assert not is_full([30, 29], 60)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=30), st.integers(1, 1000))
def test_batch_is_as_large_as_the_limit_allows(num_tokens: list[int], limit: int) -> None:
    count = batch_size(num_tokens, limit)
    assert 1 <= count <= len(num_tokens)
    assert count == 1 or sum(num_tokens[:count]) <= limit
    assert count == len(num_tokens) or sum(num_tokens[: count + 1]) > limit
