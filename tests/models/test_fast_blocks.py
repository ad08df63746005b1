"""Rotation and gated MLP equal Transformers' own."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl

from tests.tiny_models import tiny_checkpoint
from triptych.models import fast_blocks
from triptych.models.checkpoint import load_part


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_equals_the_reference(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(7, 2, 3, 16, generator=generator).to(dtype)
    cos, sin = torch.randn(2, 7, 16, generator=generator)
    query, key = modeling_qwen2_5_vl.apply_rotary_pos_emb_vision(states[:, 0], states[:, 1], cos, sin)
    got = fast_blocks.rotate(states, cos, sin)
    assert got.dtype == dtype
    torch.testing.assert_close(got, torch.stack([query, key], dim=1), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "expected"), [("qwen2_5_vl", 8), ("qwen3_vl", 3), ("qwen3_omni", 3), ("internvl", 0)]
)
def test_blocks_are_found_and_keep_their_weights(tmp_path: Path, family: str, expected: int) -> None:
    model, _ = load_part(tiny_checkpoint(family, tmp_path), "encoder", torch.float32, "cpu")
    names = set(model.state_dict())
    assert fast_blocks.install(model) == expected
    assert set(model.state_dict()) == names


def test_gated_mlp_equals_the_reference(tmp_path: Path) -> None:
    model, _ = load_part(tiny_checkpoint("qwen2_5_vl", tmp_path), "encoder", torch.float32, "cpu")
    mlp = model.get_submodule("model.visual.blocks.0.mlp")
    hidden = torch.randn(5, 32)
    with torch.inference_mode():
        expected = mlp(hidden)
        fast_blocks.install(model)
        fast = model.get_submodule("model.visual.blocks.0.mlp")
        assert type(fast) is fast_blocks.GatedMlp
        torch.testing.assert_close(copy.deepcopy(fast)(hidden), expected, atol=1e-6, rtol=1e-6)
