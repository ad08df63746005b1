from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from triptych.kv.layout import KvLayout, KvShape
from triptych.kv.pages import PagePool, PageTable

SHAPE = KvShape(num_layers=2, num_kv_heads=1, key_dim=2, value_dim=3, dtype=torch.float32)


def new_pool(num_pages: int, page_tokens: int = 4) -> PagePool:
    return PagePool(KvLayout(page_tokens=page_tokens, num_pages=num_pages, shape=SHAPE), torch.device("cpu"))


def test_tensors_hold_every_slot_of_every_layer() -> None:
    pool = new_pool(5)
    assert [tuple(keys.shape) for keys in pool.keys] == [(20, 1, 2)] * 2
    assert [tuple(values.shape) for values in pool.values] == [(20, 1, 3)] * 2


def test_short_pool_gives_nothing_rather_than_a_part() -> None:
    pool = new_pool(3)
    assert pool.take(4) is None
    assert pool.num_free == 3


def test_freeing_a_page_twice_is_a_bug() -> None:
    pool = new_pool(3)
    pages = pool.take(2)
    assert pages is not None
    pool.give_back(pages)
    with pytest.raises(AssertionError, match="free already"):
        pool.give_back(pages[:1])


def test_slots_follow_the_table_across_pages() -> None:
    pool = new_pool(6)
    first, second = PageTable(pool), PageTable(pool)
    assert first.grow(4)
    assert second.grow(1)
    assert first.grow(6)
    assert first.pages.tolist() == [0, 2]
    assert first.slots(2, 6).tolist() == [2, 3, 8, 9]


def test_growing_within_a_page_takes_nothing() -> None:
    pool = new_pool(2)
    table = PageTable(pool)
    assert table.grow(1)
    assert table.grow(4)
    assert (table.num_pages, table.capacity_tokens, pool.num_used) == (1, 4, 1)


def test_last_page_holds_nothing_of_its_former_holder() -> None:
    pool = new_pool(1)
    table = PageTable(pool)
    assert table.grow(1)
    pool.keys[1].fill_(float("nan"))
    table.close()
    assert table.grow(1)
    assert not pool.keys[1].isnan().any()


def test_closing_twice_is_harmless() -> None:
    pool = new_pool(2)
    table = PageTable(pool)
    assert table.grow(8)
    table.close()
    table.close()
    assert pool.num_used == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), max_size=40))
def test_no_page_is_held_twice_or_lost(steps: list[tuple[int, int]]) -> None:
    pool = new_pool(20)
    tables = [PageTable(pool) for _ in range(4)]
    for which, num_tokens in steps:
        if num_tokens == 0:
            tables[which].close()
        else:
            had = tables[which].num_pages
            grown = tables[which].grow(num_tokens)
            assert grown == (tables[which].capacity_tokens >= num_tokens)
            assert grown or tables[which].num_pages == had
        held = [page for table in tables for page in table.pages.tolist()]
        assert len(held) == len(set(held)) == pool.num_used
    for table in tables:
        table.close()
    assert pool.usage == 0
