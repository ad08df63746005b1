"""Grouped attention equals attention segment by segment."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from tests.tiny_models import tiny_checkpoint
from triptych.models import segments
from triptych.models.checkpoint import load_part


def _one_by_one(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bounds: list[int]
) -> torch.Tensor:
    parts: list[torch.Tensor] = []
    for begin, end in pairwise(bounds):
        q, k, v = (tensor[begin:end].transpose(0, 1) for tensor in (query, key, value))
        parts.append(scaled_dot_product_attention(q, k, v, scale=0.3).transpose(0, 1))
    return torch.cat(parts)


@given(st.lists(st.sampled_from([1, 4, 6]), min_size=1, max_size=12))
def test_grouped_equals_one_by_one(lengths: list[int]) -> None:
    bounds = torch.tensor([0, *lengths]).cumsum(0).tolist()
    query, key, value = torch.randn(3, bounds[-1], 2, 8, generator=torch.Generator().manual_seed(0))
    got = segments.attend(query, key, value, bounds, 0.3)
    assert got.shape == query.shape
    torch.testing.assert_close(got, _one_by_one(query, key, value, bounds), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("family", "expected"), [("qwen3_omni", 5), ("qwen3_vl", 3), ("internvl", 0)])
def test_attention_in_segments_is_found(tmp_path: Path, family: str, expected: int) -> None:
    model, _ = load_part(tiny_checkpoint(family, tmp_path), "encoder", torch.float32, "cpu")
    assert segments.install(model) == expected
