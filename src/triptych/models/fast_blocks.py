"""Vision blocks with fewer passes over memory: the same arithmetic, in place where nobody else looks.

rotation   Transformers: negate, concatenate, two products, a sum, for queries and for keys
           here: one product and two multiply-adds for both at once
gated MLP  act(gate) × up, in the memory of act(gate)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

import torch
from torch import nn

from triptych.models.segments import attend


class _Attention(Protocol):
    """What the Qwen vision towers' attention modules have in common."""

    qkv: nn.Module
    proj: nn.Module
    num_heads: int
    scaling: float


class _Mlp(Protocol):
    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module
    act_fn: Callable[[torch.Tensor], torch.Tensor]


class RotaryAttention(nn.Module):
    """Attention within segments, with rotary positions, sharing the weights of `original`."""

    def __init__(self, original: _Attention) -> None:
        super().__init__()
        self.qkv, self.proj = original.qkv, original.proj
        self.num_heads, self.scaling = original.num_heads, original.scaling

    def forward(
        self,
        hidden_states: torch.Tensor,
        cu_seqlens: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        **_: object,
    ) -> torch.Tensor:
        """[rows, hidden] → [rows, hidden]; `position_embeddings` are cosines and sines [rows, dim]."""
        qkv = cast(torch.Tensor, self.qkv(hidden_states)).unflatten(-1, (3, self.num_heads, -1))
        rotated = rotate(qkv[:, :2], *position_embeddings)
        out = attend(rotated[:, 0], rotated[:, 1], qkv[:, 2], cu_seqlens.tolist(), self.scaling)
        return self.proj(out.flatten(1))


def rotate(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate `states` [rows, 2, heads, dim] by the angles of `cos` and `sin` [rows, dim], in float32.

    The pair of coordinate i is i + dim / 2, as in `apply_rotary_pos_emb_vision` of Transformers 5.24
    (`models/qwen2_5_vl/modeling_qwen2_5_vl.py`); tests/models/test_fast_blocks.py compares.
    """
    cos, sin = (table[:, None, None].float() for table in (cos, sin))
    wide = states.float()
    half = states.shape[-1] // 2
    out = wide * cos
    out[..., :half].addcmul_(wide[..., half:], sin[..., :half], value=-1)
    out[..., half:].addcmul_(wide[..., :half], sin[..., half:])
    return out.to(states.dtype)


class GatedMlp(nn.Module):
    """down(act(gate(x)) × up(x)), sharing the weights of `original`."""

    def __init__(self, original: _Mlp) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (
            original.gate_proj,
            original.up_proj,
            original.down_proj,
        )
        self.act_fn = original.act_fn

    def forward(self, hidden_state: torch.Tensor) -> torch.Tensor:
        gated = self.act_fn(self.gate_proj(hidden_state)).mul_(self.up_proj(hidden_state))
        return self.down_proj(gated)


def install(model: nn.Module) -> int:
    """Replace such blocks of `model`; says how many there were."""
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            fast = _fast(child)
            if fast is not None:
                setattr(parent, name, fast)
                count += 1
    return count


def _fast(module: nn.Module) -> nn.Module | None:
    if _is_like(module, "VisionAttention", ("qkv", "proj", "num_heads", "scaling")):
        return RotaryAttention(cast(_Attention, module))
    if _is_like(module, "MLP", ("gate_proj", "up_proj", "down_proj", "act_fn")):
        return GatedMlp(cast(_Mlp, module))
    return None


def _is_like(module: nn.Module, suffix: str, members: tuple[str, ...]) -> bool:
    """By name and members: the forward of such classes is the same throughout Transformers' Qwen towers."""
    name = type(module).__name__
    return name.startswith("Qwen") and name.endswith(suffix) and all(hasattr(module, m) for m in members)
