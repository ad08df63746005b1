from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch

from tests.language.test_scheduler import waiting
from triptych.errors import UnsupportedModel
from triptych.kv.layout import KvLayout, KvShape
from triptych.kv.pages import PagePool
from triptych.language.attention import Paging, paged_attention
from triptych.language.paging import in_batch_order, plan_paging
from triptych.language.sequence import Chunk

CPU = torch.device("cpu")
HEADS, KV_HEADS, KEY_DIM, VALUE_DIM = 6, 2, 8, 8
LAYER = cast("torch.nn.Module", SimpleNamespace(layer_idx=1))


class Streams:
    """Random queries, keys and values of some sequences, run through paged attention step by step."""

    def __init__(self, lengths: list[int], value_dim: int, page_tokens: int) -> None:
        shape = KvShape(
            num_layers=2, num_kv_heads=KV_HEADS, key_dim=KEY_DIM, value_dim=value_dim, dtype=torch.float32
        )
        self.pool = PagePool(KvLayout(page_tokens=page_tokens, num_pages=200, shape=shape), CPU)
        self.sequences = [waiting(self.pool, str(i), length) for i, length in enumerate(lengths)]
        torch.manual_seed(0)
        self.queries = [torch.randn(HEADS, n, KEY_DIM) for n in lengths]
        self.keys = [torch.randn(KV_HEADS, n, KEY_DIM) for n in lengths]
        self.values = [torch.randn(KV_HEADS, n, value_dim) for n in lengths]
        self.outputs = [torch.zeros(n, HEADS, value_dim) for n in lengths]

    def step(self, wanted: list[tuple[int, int]]) -> None:
        """Attend the next tokens of (sequence, count)."""
        for index, _ in wanted:
            assert self.sequences[index].table.grow(len(self.sequences[index].tokens))
        chunks = in_batch_order([Chunk(self.sequences[index], count) for index, count in wanted])
        paging = plan_paging(self.pool, chunks, CPU)
        places = [(self.sequences.index(c.sequence), c.sequence.num_cached, c.num_tokens) for c in chunks]
        query, key, value = (
            torch.cat([stream[i][:, past : past + n] for i, past, n in places], dim=1)[None]
            for stream in (self.queries, self.keys, self.values)
        )
        output, _ = paged_attention(LAYER, query, key, value, paging=paging, scaling=0.3)
        begin = 0
        for (index, past, count), chunk in zip(places, chunks, strict=True):
            self.outputs[index][past : past + count] = output[0, begin : begin + count]
            begin += count
            chunk.sequence.num_cached += count

    def expected(self, index: int) -> torch.Tensor:
        """[n, heads, value_dim] by plain matrix products."""
        keys = self.keys[index].repeat_interleave(HEADS // KV_HEADS, dim=0)
        values = self.values[index].repeat_interleave(HEADS // KV_HEADS, dim=0)
        scores = self.queries[index] @ keys.transpose(1, 2) * 0.3
        unseen = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        return (scores.masked_fill(unseen, float("-inf")).softmax(-1) @ values).transpose(0, 1)


@pytest.mark.parametrize("value_dim", [VALUE_DIM, 5])
@pytest.mark.parametrize("page_tokens", [1, 4, 16])
def test_chunks_and_decodes_in_one_batch_equal_plain_attention(value_dim: int, page_tokens: int) -> None:
    streams = Streams([23, 40, 7, 64, 5], value_dim, page_tokens)
    streams.step([(0, 22), (1, 13), (2, 6)])
    streams.step([(0, 1), (1, 26), (2, 1), (3, 63)])
    streams.step([(1, 1), (3, 1), (4, 5)])
    for index in range(5):
        torch.testing.assert_close(streams.outputs[index], streams.expected(index), rtol=1e-4, atol=1e-5)


def test_single_tokens_of_a_prompt_equal_plain_attention() -> None:
    streams = Streams([6, 3], VALUE_DIM, 4)
    for _ in range(3):
        streams.step([(0, 1), (1, 1)])
    streams.step([(0, 3)])
    for index in range(2):
        torch.testing.assert_close(streams.outputs[index], streams.expected(index), rtol=1e-4, atol=1e-5)


def test_layer_with_a_sliding_window_is_refused() -> None:
    streams = Streams([1], VALUE_DIM, 4)
    paging = Paging(pool=streams.pool, slots=torch.tensor([0]), prefills=(), decodes=())
    empty = torch.zeros(1, 1, 1, 1)
    with pytest.raises(UnsupportedModel, match="sliding"):
        paged_attention(LAYER, empty, empty, empty, paging=paging, sliding_window=4)
