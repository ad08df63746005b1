"""The tiny model's tokenizer: one token a byte, then the special tokens. Needs no training data."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END_OF_TURN = "<|im_end|>"
PADDING = "<|endoftext|>"
SPECIAL_TOKENS = {
    "im_start_token": "<|im_start|>",
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "audio_token": "<|audio_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
}
"""Attribute of the tokenizer → token; the attribute names are those that Qwen3-Omni's processor reads."""
MAX_TOKENS = 8192


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Ids 0 to 255 are the characters of GPT-2's byte alphabet in code point order; specials follow."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=END_OF_TURN,
        pad_token=PADDING,
        extra_special_tokens=SPECIAL_TOKENS,
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_TOKENS,
    )
