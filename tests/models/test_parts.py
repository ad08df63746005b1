"""A model is split at its decoder."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from tests.tiny_models import FAMILIES, MODEL_CLASSES, tiny_checkpoint
from triptych.models.architecture import load_config
from triptych.models.parts import drop, split

_ENCODERS = {
    "qwen3_omni": ("model.audio_tower", "model.visual"),
    "qwen2_5_vl": ("model.visual",),
    "qwen3_vl": ("model.visual",),
    "internvl": ("model.multi_modal_projector", "model.vision_tower"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_has_its_half(tmp_path: Path, family: str) -> None:
    config = load_config(tiny_checkpoint(family, tmp_path))
    with torch.device("meta"):
        model = cast("type[PreTrainedModel]", MODEL_CLASSES[family])(config)
    halves = split(model)
    assert tuple(sorted(halves.encoder)) == _ENCODERS[family]
    assert tuple(sorted(halves.language)) == ("lm_head", "model.language_model")
    for name, _ in model.named_parameters():
        assert halves.keeps("encoder", name) != halves.keeps("language", name)
    drop(model, halves.dropped("encoder"))
    assert all(halves.keeps("encoder", name) for name, _ in model.named_parameters())


def test_text_model_has_no_encoder() -> None:
    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1))
    assert split(model).encoder == ()
