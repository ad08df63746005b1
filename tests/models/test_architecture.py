"""From config.json to the class that is served."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tiny_models import FAMILIES, MODEL_CLASSES, tiny_checkpoint
from triptych.errors import CheckpointError, UnsupportedModel
from triptych.models.architecture import load_config, model_class


@pytest.mark.parametrize("family", FAMILIES)
def test_class_is_the_one_that_the_checkpoint_names(tmp_path: Path, family: str) -> None:
    assert model_class(load_config(tiny_checkpoint(family, tmp_path))) is MODEL_CLASSES[family]


def test_speech_checkpoint_is_served_by_its_thinker(tmp_path: Path) -> None:
    thinker = json.loads((tiny_checkpoint("qwen3_omni", tmp_path) / "config.json").read_text())
    wrapper = {"architectures": ["x"], "model_type": "qwen3_omni_moe", "thinker_config": thinker}
    (tmp_path / "config.json").write_text(json.dumps(wrapper))
    assert model_class(load_config(tmp_path)) is MODEL_CLASSES["qwen3_omni"]


def test_unknown_model_type_is_unsupported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no_such_model"}))
    with pytest.raises(UnsupportedModel):
        load_config(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_broken_config_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises((CheckpointError, UnsupportedModel)):
        load_config(tmp_path)
