"""Very small random models of the families that tests run against, as complete checkpoints. No network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from triptych.models import torchvision_cpu

torchvision_cpu.install()  # before Transformers is imported

import torch  # noqa: E402
import transformers  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: E402
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast, ProcessorMixin  # noqa: E402

FAMILIES = ("qwen3_omni", "qwen2_5_vl", "qwen3_vl", "internvl")
MODALITIES = {
    "qwen3_omni": ("image", "audio", "video"),
    "qwen2_5_vl": ("image", "video"),
    "qwen3_vl": ("image", "video"),
    "internvl": ("image", "video"),
}
EOS_BYTES = tuple(range(0, 256, 24))
"""Byte tokens that also end a reply: random weights hit one of them within a few dozen tokens."""
MODEL_CLASSES = {
    "qwen3_omni": transformers.Qwen3OmniMoeThinkerForConditionalGeneration,
    "qwen2_5_vl": transformers.Qwen2_5_VLForConditionalGeneration,
    "qwen3_vl": transformers.Qwen3VLForConditionalGeneration,
    "internvl": transformers.InternVLForConditionalGeneration,
}
"""The reference classes, for `MODEL_CLASSES[family].from_pretrained(directory)`."""

_Made = tuple[PreTrainedModel, ProcessorMixin]


def tiny_checkpoint(family: str, directory: Path, max_shard_size: str = "150KB") -> Path:
    """Write config, generation config, tokenizer, processor, chat template and float32 shards of a family.

    Returns the checkpoint's own directory, `directory / family`; one that is there is kept as it is.
    """
    target = directory / family
    if target.exists():
        return target
    makers: dict[str, Callable[[PreTrainedTokenizerFast], _Made]] = {
        "qwen3_omni": _qwen3_omni,
        "qwen2_5_vl": _qwen2_5_vl,
        "qwen3_vl": _qwen3_vl,
        "internvl": _internvl,
    }
    tokenizer = _tokenizer("<video>" if family == "internvl" else "<|video_pad|>")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, processor = makers[family](tokenizer)
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                torch.nn.init.normal_(parameter, std=0.2)
    eos = _id(tokenizer, "<|im_end|>")
    model.generation_config = GenerationConfig(
        eos_token_id=[eos, *EOS_BYTES], pad_token_id=_id(tokenizer, "<|endoftext|>"), do_sample=False
    )
    model.float().save_pretrained(target, max_shard_size=max_shard_size)
    processor.save_pretrained(target)
    return target


def _tokenizer(video_token: str) -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens={
            "im_start_token": "<|im_start|>",
            "image_token": "<|image_pad|>",
            "video_token": video_token,
            "audio_token": "<|audio_pad|>",
            "vision_bos_token": "<|vision_start|>",
            "vision_eos_token": "<|vision_end|>",
            "audio_bos_token": "<|audio_start|>",
            "audio_eos_token": "<|audio_end|>",
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
        },
    )


def _id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    token_id = tokenizer.convert_tokens_to_ids(token)
    assert isinstance(token_id, int)
    return token_id


def _text(**more: object) -> dict[str, object]:
    return {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 288,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": 256,
        **more,
    }


def _mrope(interleaved: bool) -> dict[str, object]:
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    return {**rope, "mrope_interleaved": True} if interleaved else rope


def _token_ids(tokenizer: PreTrainedTokenizerFast, *names: str) -> dict[str, int]:
    spelled = {"image": "image_pad", "video": "video_pad", "audio": "audio_pad"}
    return {f"{name}_token_id": _id(tokenizer, f"<|{spelled.get(name, name)}|>") for name in names}


def _deepstack_vision() -> dict[str, object]:
    return {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 4,
        "out_hidden_size": 64,
        "patch_size": 16,
        "num_position_embeddings": 144,
        "deepstack_visual_indexes": [1, 2],
    }


def _qwen_images(patch_size: int) -> transformers.Qwen2VLImageProcessor:
    return transformers.Qwen2VLImageProcessor(
        patch_size=patch_size, size={"shortest_edge": 64 * 64, "longest_edge": 32 * 32 * 64}
    )


def _qwen3_videos() -> transformers.Qwen3VLVideoProcessor:
    return transformers.Qwen3VLVideoProcessor(
        size={"shortest_edge": 64 * 64, "longest_edge": 32 * 32 * 256},
        max_frames=16,
        cap_pixels_per_frame=False,
    )


def _qwen3_omni(tokenizer: PreTrainedTokenizerFast) -> _Made:
    audio = {
        "num_mel_bins": 128,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "d_model": 32,
        "output_dim": 64,
        "downsample_hidden_size": 16,
        "n_window": 50,
        "n_window_infer": 800,
    }
    experts = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "decoder_sparse_step": 1,
    }
    config = transformers.Qwen3OmniMoeThinkerConfig(
        text_config=_text(rope_parameters=_mrope(interleaved=True), **experts),
        vision_config=_deepstack_vision(),
        audio_config=audio,
        position_id_per_seconds=13,
    )
    config.update(
        _token_ids(tokenizer, "image", "video", "audio", "vision_start", "vision_end", "audio_start")
    )
    processor = transformers.Qwen3OmniMoeProcessor(
        image_processor=_qwen_images(16),
        video_processor=_qwen3_videos(),
        feature_extractor=transformers.WhisperFeatureExtractor(feature_size=128),
        tokenizer=tokenizer,
        chat_template=_QWEN_TEMPLATE,
    )
    return transformers.Qwen3OmniMoeThinkerForConditionalGeneration(config), processor


def _qwen2_5_vl(tokenizer: PreTrainedTokenizerFast) -> _Made:
    vision = {
        "depth": 4,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 4,
        "out_hidden_size": 64,
        "patch_size": 14,
        "window_size": 56,
        "fullatt_block_indexes": [1, 3],
    }
    config = transformers.Qwen2_5_VLConfig(
        text_config=_text(rope_parameters=_mrope(interleaved=False)), vision_config=vision
    )
    config.update(_token_ids(tokenizer, "image", "video", "vision_start", "vision_end"))
    processor = transformers.Qwen2_5_VLProcessor(
        image_processor=_qwen_images(14),
        tokenizer=tokenizer,
        video_processor=transformers.Qwen2VLVideoProcessor(
            size={"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 256}, max_frames=16
        ),
        chat_template=_QWEN_TEMPLATE,
    )
    return transformers.Qwen2_5_VLForConditionalGeneration(config), processor


def _qwen3_vl(tokenizer: PreTrainedTokenizerFast) -> _Made:
    config = transformers.Qwen3VLConfig(
        text_config=_text(rope_parameters=_mrope(interleaved=True)), vision_config=_deepstack_vision()
    )
    config.update(_token_ids(tokenizer, "image", "video", "vision_start", "vision_end"))
    processor = transformers.Qwen3VLProcessor(
        image_processor=_qwen_images(16),
        tokenizer=tokenizer,
        video_processor=_qwen3_videos(),
        chat_template=_QWEN_TEMPLATE,
    )
    return transformers.Qwen3VLForConditionalGeneration(config), processor


def _internvl(tokenizer: PreTrainedTokenizerFast) -> _Made:
    vision = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "image_size": [56, 56],
        "patch_size": [14, 14],
    }
    config = transformers.InternVLConfig(
        text_config=_text(model_type="qwen3"),
        vision_config=vision,
        image_token_id=_id(tokenizer, "<IMG_CONTEXT>"),
        image_seq_length=4,
        tie_word_embeddings=False,
    )
    processor = transformers.InternVLProcessor(
        image_processor=transformers.GotOcr2ImageProcessor(
            size={"height": 56, "width": 56}, crop_to_patches=True, min_patches=1, max_patches=4
        ),
        tokenizer=tokenizer,
        video_processor=transformers.InternVLVideoProcessor(size={"height": 56, "width": 56}),
        image_seq_length=4,
        chat_template=_INTERNVL_TEMPLATE,
    )
    return transformers.InternVLForConditionalGeneration(config), processor


_CHATML = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['content'] is string -%}
{{- message['content'] -}}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'text' -%}
{{- part['text'] -}}
MEDIA
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
_QWEN_TEMPLATE = _CHATML.replace(
    "MEDIA",
    """\
{%- elif part['type'] == 'image' -%}
{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- elif part['type'] == 'video' -%}
{{- '<|vision_start|><|video_pad|><|vision_end|>' -}}
{%- elif part['type'] == 'audio' -%}
{{- '<|audio_start|><|audio_pad|><|audio_end|>' -}}""",
)
_INTERNVL_TEMPLATE = _CHATML.replace(
    "MEDIA",
    """\
{%- elif part['type'] == 'image' -%}
{{- '<IMG_CONTEXT>\\n' -}}
{%- elif part['type'] == 'video' -%}
{{- '<video>\\n' -}}""",
)
