from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import torch
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from triptych.models.kv_shape import kv_shape

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 32,
    "pad_token_id": 0,
}
LATENT = {
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 8,
}
Shape = tuple[int, int, int]


def seen_by_attention(config: PreTrainedConfig) -> list[Shape]:
    """(heads, key width, value width) of each layer, in a forward of three tokens."""
    seen: list[Shape] = []

    def attention(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *_: object,
        **__: object,
    ) -> tuple[torch.Tensor, None]:
        seen.append((key.shape[1], key.shape[3], value.shape[3]))
        return query.new_zeros(1, 3, query.shape[1], value.shape[3]), None

    AttentionInterface.register("test_kv_shape", attention)
    build = cast(Callable[..., torch.nn.Module], AutoModelForCausalLM.from_config)
    build(config, attn_implementation="test_kv_shape")(input_ids=torch.tensor([[1, 2, 3]]), use_cache=False)
    return seen


@pytest.mark.parametrize(
    ("model_type", "fields"),
    [
        ("qwen3", {"num_key_value_heads": 2, "head_dim": 16}),
        ("qwen2", {"num_key_value_heads": 2}),
        ("llama", {}),
        ("deepseek_v3", LATENT),
    ],
)
def test_the_shape_is_what_arrives_at_the_attention(model_type: str, fields: dict[str, int]) -> None:
    make = cast(Callable[..., PreTrainedConfig], AutoConfig.for_model)
    config = make(model_type, **SMALL, **fields)
    shape = kv_shape(config, torch.bfloat16)
    assert [(shape.num_kv_heads, shape.key_dim, shape.value_dim)] * shape.num_layers == seen_by_attention(
        config
    )
    assert shape.dtype == torch.bfloat16
