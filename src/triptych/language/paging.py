"""The index tensors of one batch, built once a step with numpy and shared by all layers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from triptych.kv.pages import PagePool
from triptych.language.attention import DecodeGroup, Paging, PrefillSegment
from triptych.language.sequence import Chunk

MAX_MASK_ELEMENTS: Final = 1 << 22
"""A longer prefill segment over a long past is cut in rows, so that its mask stays small."""


def decode_bucket(chunk: Chunk) -> int:
    """Decodes with equal buckets share one attention call; padding at most doubles what a sequence reads."""
    return chunk.sequence.table.num_pages.bit_length()


def in_batch_order(chunks: list[Chunk]) -> list[Chunk]:
    """Prefills first, then decodes by bucket: what `plan_paging` expects."""
    prefills = [chunk for chunk in chunks if not chunk.decodes]
    decodes = [chunk for chunk in chunks if chunk.decodes]
    return prefills + sorted(decodes, key=decode_bucket)


def plan_paging(pool: PagePool, chunks: list[Chunk], device: torch.device) -> Paging:
    """Where the batch's keys and values go and what each part of it attends to.

    `chunks` are in batch order and their tables hold pages for every token of the chunk.
    """
    slots: list[NDArray[np.int64]] = []
    prefills: list[PrefillSegment] = []
    decodes: list[DecodeGroup] = []
    begin = 0
    for is_decode, group in groupby(chunks, key=lambda chunk: chunk.decodes):
        if is_decode:
            for _, members in groupby(group, key=decode_bucket):
                plan, where = _decode_group(pool, list(members), begin, device)
                decodes.append(plan)
                slots.append(where)
                begin = plan.end
            continue
        for chunk in group:
            past = chunk.sequence.num_cached
            slots.append(chunk.sequence.table.slots(past, past + chunk.num_tokens))
            prefills.extend(_prefill_segments(pool, chunk, begin, device))
            begin += chunk.num_tokens
    return Paging(
        pool=pool,
        slots=torch.from_numpy(np.concatenate(slots)).to(device),
        prefills=tuple(prefills),
        decodes=tuple(decodes),
    )


def _decode_group(
    pool: PagePool, chunks: list[Chunk], begin: int, device: torch.device
) -> tuple[DecodeGroup, NDArray[np.int64]]:
    page_tokens = pool.layout.page_tokens
    past = np.array([chunk.sequence.num_cached for chunk in chunks])
    num_keys = int(past.max()) + 1
    pages = np.empty((len(chunks), pool.layout.pages_for(num_keys)), dtype=np.int64)
    for row, chunk in zip(pages, chunks, strict=True):
        held = chunk.sequence.table.pages[: len(row)]
        # Padded with its own page: masked scores of a foreign page that holds nan would still be nan.
        row[: len(held)] = held
        row[len(held) :] = held[-1]
    slots = pages[np.arange(len(chunks)), past // page_tokens] * page_tokens + past % page_tokens
    mask = None
    if int(past.min()) + 1 < num_keys:
        unseen = torch.from_numpy(np.arange(num_keys) > past[:, None])
        mask = _additive(unseen, pool.layout.shape.dtype)[:, None, None].to(device)
    group = DecodeGroup(
        begin=begin,
        end=begin + len(chunks),
        num_keys=num_keys,
        pages=torch.from_numpy(pages.reshape(-1)).to(device),
        mask=mask,
    )
    return group, slots


def _prefill_segments(
    pool: PagePool, chunk: Chunk, begin: int, device: torch.device
) -> Iterator[PrefillSegment]:
    past, count = chunk.sequence.num_cached, chunk.num_tokens
    if past == 0:
        yield PrefillSegment(begin=begin, end=begin + count, num_keys=count, pages=None, mask=None)
        return
    pages = torch.from_numpy(chunk.sequence.table.pages.copy()).to(device)
    rows = max(1, MAX_MASK_ELEMENTS // (past + count))
    for first in range(0, count, rows):
        last = min(first + rows, count)
        num_keys = past + last
        unseen = torch.arange(num_keys) > torch.arange(past + first, num_keys)[:, None]
        yield PrefillSegment(
            begin=begin + first,
            end=begin + last,
            num_keys=num_keys,
            pages=pages[: pool.layout.pages_for(num_keys)],
            mask=_additive(unseen, pool.layout.shape.dtype).to(device),
        )


def _additive(unseen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where seen, -inf elsewhere: attention would convert a boolean mask again in every layer."""
    return torch.zeros(unseen.shape, dtype=dtype).masked_fill_(unseen, float("-inf"))
