from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch
from model.architecture import make_config
from model.tokenizer import make_tokenizer
from transformers import AutoTokenizer, GenerationConfig, Qwen3OmniMoeThinkerForConditionalGeneration


def test_it_has_every_part_of_the_big_model() -> None:
    config = cast("dict[str, dict[str, object]]", make_config(make_tokenizer()).to_dict())
    assert config["vision_config"]["deepstack_visual_indexes"] == [1, 2]
    assert config["audio_config"]["encoder_layers"] == 2
    text = config["text_config"]
    assert (text["num_experts"], text["num_experts_per_tok"]) == (4, 2)
    assert cast("dict[str, object]", text["rope_parameters"])["mrope_interleaved"] is True


def test_generation_ends_at_the_end_of_a_turn(tiny: Path) -> None:
    generation = GenerationConfig.from_pretrained(tiny)
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    assert generation.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert generation.pad_token_id == tokenizer.convert_tokens_to_ids("<|endoftext|>")


def test_greedy_replies_differ_and_vary(tiny: Path) -> None:
    """A model that repeats one token would let wrong positions or embeddings pass every comparison."""
    model = Qwen3OmniMoeThinkerForConditionalGeneration.from_pretrained(tiny, dtype=torch.float32)
    generate = cast(Callable[..., torch.Tensor], model.generate)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    replies: list[tuple[int, ...]] = []
    for text in ("Hello there", "A red circle", "12 + 30 = ?"):
        batch = tokenizer(text, return_tensors="pt")
        output = generate(**batch, max_new_tokens=32, eos_token_id=-1)
        replies.append(tuple(output[0, batch["input_ids"].shape[1] :].tolist()))
    assert len(set(replies)) == len(replies)
    assert min(len(set(reply)) for reply in replies) > 4
