"""Half of a checkpoint is loaded from the files that hold it, equal to the same half of a full load."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.tiny_models import FAMILIES, MODEL_CLASSES, tiny_checkpoint
from triptych.errors import CheckpointError, UnsupportedModel
from triptych.models.checkpoint import load_part
from triptych.models.parts import Part, split
from triptych.models.weight_files import INDEX_NAME

PARTS: tuple[Part, ...] = ("encoder", "language")


def _full(path: Path, family: str) -> transformers.PreTrainedModel:
    return MODEL_CLASSES[family].from_pretrained(path)


def _shards(path: Path) -> list[Path]:
    return sorted(path.glob("*.safetensors"))


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_half_equals_the_full_load_without_the_other_half_s_shards(
    tmp_path: Path, family: str, part: Part
) -> None:
    path = tiny_checkpoint(family, tmp_path)
    full = _full(path, family)
    _, report = load_part(path, part, torch.float32, "cpu")
    assert report.shards_total == len(_shards(path))
    needed = _needed_shards(path, full, part)
    assert report.shards_opened == len(needed) < report.shards_total
    for shard in _shards(path):
        if shard.name not in needed:
            shard.unlink()

    model, _ = load_part(path, part, torch.float32, "cpu")

    expected = full.state_dict()
    loaded = model.state_dict()
    assert set(loaded) == {name for name in expected if split(full).keeps(part, name)}
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.items())


def _needed_shards(path: Path, full: transformers.PreTrainedModel, part: Part) -> set[str]:
    """By value, not by name: shards holding a tensor whose bytes appear in this half only."""
    weight_map: dict[str, str] = json.loads((path / INDEX_NAME).read_text())["weight_map"]
    language = ("lm_head", "model.language_model", "language_model", "model.model", "thinker.model")
    visual = ("visual", "vision", "audio", "multi_modal_projector")
    is_encoder = {key: any(word in key for word in visual) for key in weight_map}
    assert any(is_encoder.values())
    assert all(key.startswith((*language, "model")) for key, encoder in is_encoder.items() if not encoder)
    return {file for key, file in weight_map.items() if is_encoder[key] == (part == "encoder")}


def test_halves_add_up_to_the_whole(tmp_path: Path) -> None:
    path = tiny_checkpoint("qwen3_omni", tmp_path)
    reports = [load_part(path, part, torch.float32, "cpu")[1] for part in PARTS]
    assert sum(report.num_parameters for report in reports) == _full(path, "qwen3_omni").num_parameters()


def test_dropped_children_are_none(tmp_path: Path) -> None:
    path = tiny_checkpoint("qwen2_5_vl", tmp_path)
    encoder, _ = load_part(path, "encoder", torch.float32, "cpu")
    assert encoder.get_submodule("model").language_model is None
    assert encoder.lm_head is None
    language, _ = load_part(path, "language", torch.float32, "cpu")
    assert language.get_submodule("model").visual is None


@pytest.mark.parametrize("part", PARTS)
def test_checkpoint_of_one_file_is_split_too(tmp_path: Path, part: Part) -> None:
    path = tiny_checkpoint("qwen3_vl", tmp_path, max_shard_size="1GB")
    model, report = load_part(path, part, torch.float32, "cpu")
    assert (report.shards_opened, report.shards_total) == (1, 1)
    assert report.bytes_read == 4 * report.num_parameters
    assert report.bytes_read < _shards(path)[0].stat().st_size * 0.8
    expected = _full(path, "qwen3_vl").state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


def test_shards_without_index_are_found_by_their_headers(tmp_path: Path) -> None:
    path = tiny_checkpoint("internvl", tmp_path)
    _, expected = load_part(path, "encoder", torch.float32, "cpu")
    (path / INDEX_NAME).unlink()
    _, report = load_part(path, "encoder", torch.float32, "cpu")
    assert (report.shards_opened, report.num_parameters) == (expected.shards_opened, expected.num_parameters)


def test_weights_are_cast_to_the_dtype_asked_for(tmp_path: Path) -> None:
    model, report = load_part(tiny_checkpoint("internvl", tmp_path), "encoder", torch.bfloat16, "cpu")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert report.bytes_read == 2 * report.num_parameters


def test_thinker_is_loaded_out_of_a_speech_checkpoint(tmp_path: Path) -> None:
    path = tiny_checkpoint("qwen3_omni", tmp_path, max_shard_size="1GB")
    expected = load_file(_shards(path)[0])
    save_file({f"thinker.{k}": v for k, v in expected.items()}, _shards(path)[0], metadata={"format": "pt"})
    thinker = json.loads((path / "config.json").read_text())
    wrapper = {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        "model_type": "qwen3_omni_moe",
        "thinker_config": thinker,
    }
    (path / "config.json").write_text(json.dumps(wrapper))
    reports = [load_part(path, part, torch.float32, "cpu")[1] for part in PARTS]
    assert sum(report.num_parameters for report in reports) == sum(t.numel() for t in expected.values())


def test_tied_head_is_restored(tmp_path: Path) -> None:
    path = tiny_checkpoint("qwen3_vl", tmp_path, max_shard_size="1GB")
    config = json.loads((path / "config.json").read_text())
    config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = True
    (path / "config.json").write_text(json.dumps(config))
    weights = load_file(_shards(path)[0])
    del weights[next(key for key in weights if "lm_head" in key)]
    save_file(weights, _shards(path)[0], metadata={"format": "pt"})
    model, _ = load_part(path, "language", torch.float32, "cpu")
    head = model.get_output_embeddings()
    assert head is not None
    assert head.weight is model.get_input_embeddings().weight
    load_part(path, "encoder", torch.float32, "cpu")


def test_parameter_that_no_file_holds_is_named(tmp_path: Path) -> None:
    path = tiny_checkpoint("qwen3_vl", tmp_path, max_shard_size="1GB")
    weights = load_file(_shards(path)[0])
    lost = next(key for key in weights if key.endswith("patch_embed.proj.weight"))
    del weights[lost]
    save_file(weights, _shards(path)[0], metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"patch_embed\.proj\.weight"):
        load_part(path, "encoder", torch.float32, "cpu")


def test_missing_shard_is_a_checkpoint_error(tmp_path: Path) -> None:
    path = tiny_checkpoint("qwen3_vl", tmp_path)
    for shard in _shards(path):
        shard.unlink()
    with pytest.raises(CheckpointError, match="safetensors"):
        load_part(path, "encoder", torch.float32, "cpu")


def test_truncated_shard_is_a_checkpoint_error(tmp_path: Path) -> None:
    path = tiny_checkpoint("qwen3_vl", tmp_path, max_shard_size="1GB")
    shard = _shards(path)[0]
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="cannot read"):
        load_part(path, "encoder", torch.float32, "cpu")


def test_missing_pieces_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a directory"):
        load_part(tmp_path / "nowhere", "encoder", torch.float32, "cpu")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_part(tmp_path, "encoder", torch.float32, "cpu")
    path = tiny_checkpoint("internvl", tmp_path)
    (path / INDEX_NAME).unlink()
    for shard in _shards(path):
        shard.unlink()
    with pytest.raises(CheckpointError, match="no safetensors"):
        load_part(path, "encoder", torch.float32, "cpu")


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "no_such_model", "architectures": ["NoSuchModel"]},
        {"model_type": "qwen3_vl", "architectures": ["NoSuchModel"]},
        {"model_type": "qwen3_vl"},
        {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 1, "n_embd": 8, "n_head": 1},
    ],
)
def test_architecture_that_cannot_be_split_is_refused(tmp_path: Path, config: dict[str, object]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel):
        load_part(tmp_path, "encoder", torch.float32, "cpu")


def test_loading_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tiny_checkpoint("qwen3_omni", tmp_path)
    capfd.readouterr()
    load_part(path, "encoder", torch.float32, "cpu")
    assert capfd.readouterr() == ("", "")
