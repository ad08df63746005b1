"""The tiny model: a Qwen3-Omni thinker of under 4 million parameters with every part that the big one has."""

from __future__ import annotations

import math

import torch
from torch import nn
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3OmniMoeThinkerConfig,
    Qwen3OmniMoeThinkerForConditionalGeneration,
)

from model.tokenizer import END_OF_TURN, MAX_TOKENS, PADDING

HIDDEN = 128
NUM_LAYERS = 4
TOWER_HIDDEN = 96


def make_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3OmniMoeThinkerConfig:
    """Vision tower with two DeepStack layers, audio tower, 4 experts of which 2 work, interleaved mRoPE."""
    text = {
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": MAX_TOKENS,
        "tie_word_embeddings": False,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "decoder_sparse_step": 1,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [6, 5, 5],
            "mrope_interleaved": True,
        },
        "eos_token_id": _id(tokenizer, END_OF_TURN),
        "pad_token_id": _id(tokenizer, PADDING),
    }
    config = Qwen3OmniMoeThinkerConfig(
        text_config=text,
        vision_config=_vision(),
        audio_config=_audio(),
        position_id_per_seconds=13,
        image_token_id=_id(tokenizer, "<|image_pad|>"),
        video_token_id=_id(tokenizer, "<|video_pad|>"),
        audio_token_id=_id(tokenizer, "<|audio_pad|>"),
        audio_start_token_id=_id(tokenizer, "<|audio_start|>"),
        user_token_id=_id(tokenizer, "<|im_start|>"),
    )
    vision_ends = {f"vision_{end}_token_id": _id(tokenizer, f"<|vision_{end}|>") for end in ("start", "end")}
    config.update(vision_ends)  # read by the positions' code, though the class does not declare them
    return config


def _vision() -> dict[str, object]:
    return {
        "depth": 4,
        "hidden_size": TOWER_HIDDEN,
        "intermediate_size": 256,
        "num_heads": 3,
        "out_hidden_size": HIDDEN,
        "patch_size": 16,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [1, 2],
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }


def _audio() -> dict[str, object]:
    return {
        "num_mel_bins": 128,
        "encoder_layers": 2,
        "encoder_attention_heads": 3,
        "encoder_ffn_dim": 256,
        "d_model": TOWER_HIDDEN,
        "output_dim": HIDDEN,
        "downsample_hidden_size": 16,
        "n_window": 50,
        "n_window_infer": 800,
    }


def _id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    token_id = tokenizer.convert_tokens_to_ids(token)
    assert isinstance(token_id, int)
    return token_id


def make_model(
    tokenizer: PreTrainedTokenizerFast, seed: int = 0
) -> Qwen3OmniMoeThinkerForConditionalGeneration:
    """Random float32 weights, the same for the same seed; torch's global random state is left as it was."""
    config = make_config(tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3OmniMoeThinkerForConditionalGeneration(config).float().eval()
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, std=_std(name, parameter))
    model.generation_config = GenerationConfig(
        eos_token_id=_id(tokenizer, END_OF_TURN), pad_token_id=_id(tokenizer, PADDING), do_sample=False
    )
    return model


def _std(name: str, parameter: torch.Tensor) -> float:
    """Spread of the initial weights: activations keep their size, residual branches start small."""
    residual = 1 / math.sqrt(2 * NUM_LAYERS)
    fan_in = parameter[0].numel()
    if "embed_tokens" in name or "pos_embed" in name:
        return 0.3
    if name.endswith("gate.weight"):
        return 0.05
    if "experts." in name:
        return parameter.shape[-1] ** -0.5 * (residual if "down" in name else 1)
    if any(part in name for part in ("o_proj", "attn.proj.", "linear_fc2", "out_proj", "fc2")):
        return 0.5 * fan_in**-0.5
    if "conv2d" in name or "patch_embed" in name:
        return 1.3 * fan_in**-0.5
    return 0.9 * fan_in**-0.5
