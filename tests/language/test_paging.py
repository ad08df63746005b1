from __future__ import annotations

import pytest
import torch

from tests.language.test_scheduler import new_pool, waiting
from triptych.kv.pages import PagePool
from triptych.language import paging
from triptych.language.paging import in_batch_order, plan_paging
from triptych.language.sequence import Chunk

CPU = torch.device("cpu")


def decode(pool: PagePool, length: int) -> Chunk:
    sequence = waiting(pool, f"d{length}", length)
    assert sequence.table.grow(length)
    sequence.num_cached = length - 1
    return Chunk(sequence, 1)


def prefill(pool: PagePool, length: int, past: int = 0) -> Chunk:
    sequence = waiting(pool, f"p{length}", length)
    assert sequence.table.grow(length)
    sequence.num_cached = past
    return Chunk(sequence, length - past)


def test_decodes_of_like_length_share_a_group_and_a_long_one_does_not_pad_them() -> None:
    pool = new_pool(200)
    chunks = in_batch_order([decode(pool, n) for n in (9, 400, 12)])
    plan = plan_paging(pool, chunks, CPU)
    assert [(g.begin, g.end, g.num_keys) for g in plan.decodes] == [(0, 2, 12), (2, 3, 400)]
    assert plan.prefills == ()


def test_mask_hides_what_lies_beyond_each_sequence() -> None:
    pool = new_pool(20)
    plan = plan_paging(pool, in_batch_order([decode(pool, n) for n in (5, 7)]), CPU)
    mask = plan.decodes[0].mask
    assert mask is not None
    assert mask.shape == (2, 1, 1, 7)
    assert (mask == 0).sum(-1).flatten().tolist() == [5, 7]


def test_equal_lengths_need_no_mask() -> None:
    pool = new_pool(20)
    assert plan_paging(pool, [decode(pool, 6), decode(pool, 6)], CPU).decodes[0].mask is None


def test_padding_repeats_the_sequences_own_pages() -> None:
    pool = new_pool(20)
    short, long = decode(pool, 9), decode(pool, 12)
    short.sequence.num_cached = 4
    short.sequence.tokens = short.sequence.tokens[:5]
    group = plan_paging(pool, [short, long], CPU).decodes[0]
    own = set(short.sequence.table.pages.tolist())
    assert set(group.pages[: len(group.pages) // 2].tolist()) <= own


def test_fresh_prompt_reads_nothing_back() -> None:
    pool = new_pool(20)
    (segment,) = plan_paging(pool, [prefill(pool, 10)], CPU).prefills
    assert (segment.pages, segment.mask, segment.num_keys) == (None, None, 10)


def test_long_chunk_over_a_long_past_is_cut_so_that_its_mask_stays_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paging, "MAX_MASK_ELEMENTS", 40)
    pool = new_pool(20)
    segments = plan_paging(pool, [prefill(pool, 20, past=15)], CPU).prefills
    assert [(s.begin, s.end, s.num_keys) for s in segments] == [(0, 2, 17), (2, 4, 19), (4, 5, 20)]
    masks = [s.mask for s in segments if s.mask is not None]
    assert [(m == 0).sum(-1).tolist() for m in masks] == [[16, 17], [18, 19], [20]]


def test_slots_follow_the_batch_order() -> None:
    pool = new_pool(20)
    chunks = in_batch_order([decode(pool, 3), prefill(pool, 5)])
    slots = plan_paging(pool, chunks, CPU).slots.tolist()
    assert slots == [4, 5, 6, 7, 8, 2]
