"""Embeddings equal those of the unchanged reference model, alone and in mixed batches.

Tolerance 1e-5 relative to the largest value: grouped attention and matrix products add in another order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import cast

import pytest
import torch
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from tests.models.media_samples import audio, image, video
from tests.tiny_models import FAMILIES, MODALITIES, MODEL_CLASSES, tiny_checkpoint
from triptych.errors import InternalError, UnsupportedModel
from triptych.messages import Modality
from triptych.models.checkpoint import load_part
from triptych.models.encoder import HFEncoder
from triptych.models.interface import ProcessedItem
from triptych.models.processor import HFMediaProcessor


@dataclass(frozen=True)
class _Models:
    encoder: HFEncoder
    processor: HFMediaProcessor
    reference: PreTrainedModel


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@cache
def _models(family: str, root: Path) -> _Models:
    path = tiny_checkpoint(family, root)
    processor = HFMediaProcessor(path)
    model, _ = load_part(path, "encoder", torch.float32, "cpu")
    reference = cast(PreTrainedModel, MODEL_CLASSES[family].from_pretrained(path).eval())
    return _Models(HFEncoder(model, processor), processor, reference)


def _items(processor: HFMediaProcessor, modality: Modality) -> list[ProcessedItem]:
    """Several sizes; clips shorter and longer than the audio tower's chunk and window."""
    match modality:
        case "image":
            sizes = [(120, 200), (96, 96), (61, 300), (360, 640), (28, 28)]
            media = [image(*size, seed=i) for i, size in enumerate(sizes)]
        case "audio":
            media = [audio(count, seed=count) for count in (32_000, 19_000, 5_000, 5_100, 200_000, 16_000)]
        case "video":
            media = [video(8), video(5, 64, 64, seed=1), video(2, 200, 60, seed=2)]
    return [processor.process(modality, decoded) for decoded in media]


@torch.inference_mode()
def _reference(models: _Models, item: ProcessedItem) -> torch.Tensor:
    """[rows, hidden × layers] by the unchanged model, called with one item."""
    base = models.reference.base_model
    modality = "image" if "pixel_values" in item.inputs else item.modality
    output = cast(ModelOutput, getattr(base, f"get_{modality}_features")(**item.inputs, return_dict=True))
    pooled = output["pooler_output"]
    layers = [pooled, *(output.get("deepstack_features") or [])]
    flat = [layer if isinstance(layer, torch.Tensor) else torch.cat(list(layer)) for layer in layers]
    return torch.cat([layer.flatten(0, -2) for layer in flat], dim=-1)


def _assert_close(rows: torch.Tensor, expected: torch.Tensor) -> None:
    assert rows.shape == expected.shape
    error = float((rows - expected).abs().max())
    assert error <= 1e-5 * max(1.0, float(expected.abs().max())), error


CASES = [(family, modality) for family in FAMILIES for modality in MODALITIES[family]]


@pytest.mark.parametrize(("family", "modality"), CASES)
def test_single_items_equal_the_reference(root: Path, family: str, modality: Modality) -> None:
    models = _models(family, root)
    for item in _items(models.processor, modality):
        [rows] = models.encoder.encode([item])
        assert rows.shape == (item.num_tokens, models.encoder.widths[modality])
        _assert_close(rows, _reference(models, item))


@pytest.mark.parametrize(("family", "modality"), CASES)
def test_batch_of_different_sizes_equals_single_items(root: Path, family: str, modality: Modality) -> None:
    models = _models(family, root)
    items = _items(models.processor, modality)
    for rows, item in zip(models.encoder.encode(items), items, strict=True):
        _assert_close(rows, _reference(models, item))


@pytest.mark.parametrize("family", FAMILIES)
def test_mixed_modalities_return_in_order(root: Path, family: str) -> None:
    models = _models(family, root)
    by_modality = [_items(models.processor, cast(Modality, m))[:2] for m in MODALITIES[family]]
    items = [item for pair in zip(*by_modality, strict=True) for item in pair]
    for rows, item in zip(models.encoder.encode(items), items, strict=True):
        _assert_close(rows, _reference(models, item))


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_own_their_memory(root: Path, family: str) -> None:
    models = _models(family, root)
    for rows in models.encoder.encode(_items(models.processor, "image")):
        assert rows.is_contiguous()
        assert rows.device.type == "cpu"
        assert rows.dtype == models.encoder.dtype
        assert rows.untyped_storage().nbytes() == rows.nbytes


def test_nothing_to_encode_is_nothing(root: Path) -> None:
    assert _models("internvl", root).encoder.encode([]) == []


def test_deepstack_layers_are_packed_behind_the_main_row(root: Path) -> None:
    widths = _models("qwen3_omni", root).encoder.widths
    assert widths == {"image": 3 * 64, "video": 3 * 64, "audio": 64}


def test_namespace_names_weights_dtype_and_configuration(root: Path, tmp_path: Path) -> None:
    namespace = _models("qwen3_vl", root).encoder.namespace

    def other(dtype: torch.dtype = torch.float32) -> str:
        model, _ = load_part(path, "encoder", dtype, "cpu")
        return HFEncoder(model, HFMediaProcessor(path)).namespace

    path = tiny_checkpoint("qwen3_vl", tmp_path, max_shard_size="1GB")
    assert other() == namespace
    assert other(torch.bfloat16) != namespace
    config = path / "config.json"
    config.write_text(config.read_text().replace('"gelu_pytorch_tanh"', '"gelu"'))
    assert other() != namespace


def test_bfloat16_is_close_to_float32(root: Path) -> None:
    models = _models("qwen2_5_vl", root)
    path = root / "qwen2_5_vl"
    model, _ = load_part(path, "encoder", torch.bfloat16, "cpu")
    encoder = HFEncoder(model, models.processor)
    item = models.processor.process("image", image(120, 200))
    [rows] = encoder.encode([item])
    assert rows.dtype == torch.bfloat16
    assert torch.nn.functional.cosine_similarity(rows.float(), _reference(models, item)).min() > 0.98


def test_wrong_number_of_rows_is_an_internal_error(root: Path) -> None:
    models = _models("qwen2_5_vl", root)
    item = models.processor.process("image", image(96, 96))
    wrong = ProcessedItem(
        modality="image", inputs=item.inputs, metadata=item.metadata, num_tokens=item.num_tokens + 1
    )
    with pytest.raises(InternalError, match="rows"):
        models.encoder.encode([wrong])


def test_processor_of_another_model_is_refused(root: Path) -> None:
    omni = _models("qwen3_omni", root).processor
    model, _ = load_part(tiny_checkpoint("qwen3_vl", root), "encoder", torch.float32, "cpu")
    with pytest.raises(UnsupportedModel, match="get_audio_features"):
        HFEncoder(model, omni)
