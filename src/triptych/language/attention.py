"""Attention over the paged KV cache, for any Transformers decoder that goes through `AttentionInterface`.

One batch mixes prefill segments (several tokens of one sequence) and decodes (one token each):

    batch tokens   | prefill A | prefill B | decode C D E | decode F |
    attention      |  own call |  own call |   one call   | one call |   (decodes of like length share a call)

What is the same for all layers (`Paging`) is computed once a step, by `language/paging.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch.nn.functional import scaled_dot_product_attention

from triptych.errors import UnsupportedModel
from triptych.kv.pages import PagePool
from triptych.models import torchvision_cpu

PAGED_ATTENTION: Final = "triptych_paged"
"""The attention implementation that a model must be set to."""


@dataclass(frozen=True, slots=True)
class PrefillSegment:
    """Batch tokens begin..end, consecutive tokens of one sequence, attend causally to `num_keys` tokens.

    `pages` [k] int64 hold those tokens; None: they are the segment's own, nothing is read back.
    `mask` [end - begin, num_keys] is added to the scores; None with `pages` None: plain causal.
    """

    begin: int
    end: int
    num_keys: int
    pages: torch.Tensor | None
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Batch tokens begin..end, one of each of as many sequences, attend to all tokens of their sequence.

    `pages` [(end - begin) * k] int64: k pages each, padded with any page.
    `mask` [end - begin, 1, 1, num_keys] is added to the scores; None: all have exactly `num_keys` tokens.
    """

    begin: int
    end: int
    num_keys: int
    pages: torch.Tensor
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Paging:
    """`slots` [n] int64: where in the pool the batch's new keys and values go."""

    pool: PagePool
    slots: torch.Tensor
    prefills: tuple[PrefillSegment, ...]
    decodes: tuple[DecodeGroup, ...]


def register_paged_attention() -> None:
    """Make `PAGED_ATTENTION` known to Transformers. Call before a model is set to it; can be called twice."""
    torchvision_cpu.install()
    from transformers import AttentionInterface  # only after torchvision can be imported

    AttentionInterface.register(PAGED_ATTENTION, paged_attention)


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *,
    paging: Paging,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_ignored: object,
) -> tuple[torch.Tensor, None]:
    """Write the batch's keys and values to their pages and attend; the signature is Transformers'.

    `query`: [1, heads, n, key_dim], `key`: [1, kv_heads, n, key_dim], `value`: [1, kv_heads, n, value_dim],
    after rotary. Returns [1, n, heads, value_dim].

    Raises:
        UnsupportedModel: the layer has a sliding window.
    """
    if sliding_window is not None:
        raise UnsupportedModel("sliding-window attention has no paged implementation")
    layer = module.layer_idx
    assert isinstance(layer, int)
    keys, values = paging.pool.keys[layer], paging.pool.values[layer]
    keys.index_copy_(0, paging.slots, key[0].transpose(0, 1))
    values.index_copy_(0, paging.slots, value[0].transpose(0, 1))
    output = query.new_empty(query.shape[2], query.shape[1], value.shape[3])
    page_tokens = paging.pool.layout.page_tokens
    for segment in paging.prefills:
        begin, end = segment.begin, segment.end
        if segment.pages is None:
            own_keys, own_values = key[:, :, begin:end], value[:, :, begin:end]
        else:
            own_keys = _gather(keys, segment.pages, 1, page_tokens, segment.num_keys)
            own_values = _gather(values, segment.pages, 1, page_tokens, segment.num_keys)
        attended = scaled_dot_product_attention(
            query[:, :, begin:end],
            own_keys,
            own_values,
            attn_mask=segment.mask,
            is_causal=segment.mask is None,
            scale=scaling,
            enable_gqa=True,
        )
        output[begin:end] = attended[0].transpose(0, 1)
    for group in paging.decodes:
        group_keys = _gather(keys, group.pages, group.end - group.begin, page_tokens, group.num_keys)
        group_values = _gather(values, group.pages, group.end - group.begin, page_tokens, group.num_keys)
        queries = query[0, :, group.begin : group.end]
        output[group.begin : group.end] = _decode(queries, group_keys, group_values, group.mask, scaling)
    return output[None], None


def _gather(
    pool: torch.Tensor, pages: torch.Tensor, num_sequences: int, page_tokens: int, num_keys: int
) -> torch.Tensor:
    """[num_sequences, kv_heads, num_keys, dim], copied page by page: a page is one contiguous row."""
    _, heads, dim = pool.shape
    rows = pool.view(-1, page_tokens * heads * dim).index_select(0, pages)
    return rows.view(num_sequences, -1, heads, dim)[:, :num_keys].transpose(1, 2)


def _decode(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
) -> torch.Tensor:
    """[heads, b, dim] attend to [b, kv_heads, num_keys, dim]; returns [b, heads, value_dim].

    The query heads that share a key head become its query rows: no key is repeated.
    """
    num_heads, batch, dim = queries.shape
    kv_heads = keys.shape[1]
    grouped = queries.view(kv_heads, num_heads // kv_heads, batch, dim).permute(2, 0, 1, 3)
    attended = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scaling)
    return attended.reshape(batch, num_heads, -1)
