from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import torch
import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from triptych.errors import UnsupportedModel
from triptych.models.decoder_support import check_decoder, layer_types

SMALL: dict[str, object] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def config(model_type: str, **fields: object) -> PreTrainedConfig:
    return cast(Callable[..., PreTrainedConfig], AutoConfig.for_model)(model_type, **fields)


def built(cls: type[PreTrainedModel], small: PreTrainedConfig) -> PreTrainedModel:
    with torch.device("meta"):
        return cls(small)


def test_full_attention_throughout_is_served() -> None:
    check_decoder(built(transformers.Qwen3ForCausalLM, config("qwen3", **SMALL)))


def test_sliding_windows_are_refused_by_name() -> None:
    small = config("qwen3", **SMALL, use_sliding_window=True, sliding_window=8, max_window_layers=1)
    assert layer_types(small) == ("full_attention", "sliding_attention")
    with pytest.raises(UnsupportedModel, match="Qwen3ForCausalLM: layers of type sliding_attention"):
        check_decoder(built(transformers.Qwen3ForCausalLM, small))


def test_a_window_without_list_of_layers_is_one_for_all() -> None:
    small = config("mistral", **SMALL, sliding_window=8)
    with pytest.raises(UnsupportedModel, match="sliding_attention"):
        check_decoder(built(transformers.MistralForCausalLM, small))


def test_hybrid_models_are_refused_by_name() -> None:
    small = config("qwen3_5_text", **SMALL, layer_types=["linear_attention", "full_attention"])
    with pytest.raises(UnsupportedModel, match="linear_attention"):
        check_decoder(built(transformers.Qwen3_5ForCausalLM, small))


def test_attention_in_both_directions_is_refused() -> None:
    small = config(
        "paligemma",
        text_config={"model_type": "gemma", **SMALL},
        vision_config={
            "model_type": "siglip_vision_model",
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        },
    )
    with pytest.raises(UnsupportedModel, match="both directions"):
        check_decoder(built(transformers.PaliGemmaForConditionalGeneration, small))


def test_logits_that_the_forward_changes_are_refused() -> None:
    small = config("granite", **SMALL, logits_scaling=8.0)
    with pytest.raises(UnsupportedModel, match="logits_scaling"):
        check_decoder(built(transformers.GraniteForCausalLM, small))


def test_encoder_decoder_models_are_refused() -> None:
    small = config("t5", d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, vocab_size=32)
    with pytest.raises(UnsupportedModel, match="encoder-decoder"):
        check_decoder(built(transformers.T5ForConditionalGeneration, small))
