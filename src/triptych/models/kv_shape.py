"""What a decoder's attention hands to the KV cache, by its configuration."""

from __future__ import annotations

from typing import cast

import torch
from transformers import PreTrainedConfig

from triptych.models.interface import KvShape


def kv_shape(text_config: PreTrainedConfig, dtype: torch.dtype) -> KvShape:
    """Latent attention (MLA) is cached expanded, as Transformers computes it: every head has its own keys, of
    another size than values. tests/models/test_kv_shape.py pins it against what arrives at the attention.
    """

    def field(name: str, default: int = 0) -> int:
        return cast("int | None", getattr(text_config, name, None)) or default

    num_heads = field("num_attention_heads")
    head_dim = field("head_dim", field("hidden_size") // num_heads)
    latent = field("kv_lora_rank") > 0
    return KvShape(
        num_layers=field("num_hidden_layers"),
        num_kv_heads=num_heads if latent else field("num_key_value_heads", num_heads),
        key_dim=field("qk_nope_head_dim") + field("qk_rope_head_dim") if latent else head_dim,
        value_dim=field("v_head_dim") if latent else head_dim,
        dtype=dtype,
    )
