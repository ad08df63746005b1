"""Attention within segments (windows, images, frames, clips), those of equal length in one call.

Encoders lay all segments out along one axis and name the boundaries:

    rows        0 ......... 64 ......... 128 ..... 176      cu_seqlens = [0, 64, 128, 176]
    segments    │── 64 ──│── 64 ──│── 48 ──│                → one call of 2 × 64, one of 1 × 48

Transformers' own SDPA path makes one call a segment.
"""

from __future__ import annotations

import inspect
from itertools import groupby, pairwise

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "triptych_flash_segments"
"""With "flash" in its name Transformers' encoders hand over all segments and their boundaries at once."""


def install(model: nn.Module) -> int:
    """Let every attention module of `model` that works in segments use `segment_attention`; says how many do.

    To be called after loading: Transformers checks names of attention implementations while it loads.
    """
    AttentionInterface.register(NAME, segment_attention)
    count = 0
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is None or not hasattr(module, "num_heads"):
            continue
        if "cu_seqlens" in inspect.signature(module.forward).parameters:
            setattr(config, "_attn_implementation", NAME)  # noqa: B010
            count += 1
    return count


def segment_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    cu_seq_lens_q: torch.Tensor,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Bidirectional attention of `query`, `key`, `value` [1, heads, rows, dim] within segments.

    `cu_seq_lens_q` [segments + 1] are their boundaries. Returns [1, rows, heads, dim].
    """
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return attend(q, k, v, cu_seq_lens_q.tolist(), scaling).unsqueeze(0), None


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bounds: list[int], scaling: float
) -> torch.Tensor:
    """Bidirectional attention of [rows, heads, dim] within segments; `bounds` are their ends, after a 0."""
    parts: list[torch.Tensor] = []
    start = 0
    for length, run in groupby(end - begin for begin, end in pairwise(bounds)):
        count = len(list(run))
        rows = slice(start, start + count * length)
        # [count, heads, length, dim] each
        q, k, v = (t[rows].unflatten(0, (count, length)).transpose(1, 2) for t in (query, key, value))
        out = scaled_dot_product_attention(q, k, v, scale=scaling)
        parts.append(out.transpose(1, 2).flatten(0, 1))
        start = rows.stop
    return parts[0] if len(parts) == 1 else torch.cat(parts)
