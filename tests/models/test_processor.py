"""Encoder inputs and metadata equal, bit for bit, what the model's own processor makes of the same item."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoProcessor, BatchFeature, ProcessorMixin
from transformers.video_utils import VideoMetadata

from tests.tiny_models import FAMILIES, MODALITIES, tiny_checkpoint
from triptych.errors import CheckpointError, MediaInvalid, UnsupportedModality
from triptych.media.types import DecodedAudio, DecodedImage, DecodedVideo, VideoInfo
from triptych.models.interface import ProcessedItem
from triptych.models.processor import HFMediaProcessor

_PLACES = {
    "image": "<|vision_start|><|image_pad|><|vision_end|>",
    "video": "<|vision_start|><|video_pad|><|vision_end|>",
    "audio": "<|audio_start|><|audio_pad|><|audio_end|>",
}
_INTERNVL_PLACES = {"image": "<IMG_CONTEXT>", "video": "<video>"}
_PLACEHOLDERS = ("<|image_pad|>", "<|video_pad|>", "<|audio_pad|>", "<IMG_CONTEXT>")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        tiny_checkpoint(family, root)
    return root


def _noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)


def _reference(path: Path, modality: str, **media: object) -> tuple[BatchFeature, int]:
    """What the model's own processor makes of one item, and the number of placeholders in its prompt."""
    processor = cast(ProcessorMixin, AutoProcessor.from_pretrained(path))
    places = _INTERNVL_PLACES if path.name == "internvl" else _PLACES
    run = cast("Callable[..., BatchFeature]", processor)
    batch = run(text=[f"see {places[modality]}"], return_tensors="pt", **media)
    tokens = processor.tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
    return batch, sum(token in _PLACEHOLDERS for token in tokens)


def _assert_same_inputs(item: ProcessedItem, batch: BatchFeature) -> None:
    assert item.inputs
    for name, tensor in item.inputs.items():
        assert tensor.dtype == batch[name].dtype
        assert torch.equal(tensor, batch[name]), name


def _values(item: ProcessedItem) -> dict[str, tuple[int | float, ...]]:
    return {array.name: array.values for array in item.metadata}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [(120, 200), (97, 61), (40, 300), (360, 640)])
def test_image_inputs_equal_the_reference(checkpoints: Path, family: str, size: tuple[int, int]) -> None:
    pixels = _noise(*size, 3)
    item = HFMediaProcessor(checkpoints / family).process("image", DecodedImage(pixels))
    batch, placeholders = _reference(checkpoints / family, "image", images=[Image.fromarray(pixels)])
    _assert_same_inputs(item, batch)
    assert item.num_tokens == placeholders
    if family == "internvl":
        assert _values(item)["num_patches"] == (len(batch["pixel_values"]),)
    else:
        assert _values(item)["image_grid_thw"] == tuple(batch["image_grid_thw"].flatten().tolist())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("num_frames", [8, 5, 2])
def test_video_inputs_equal_the_reference(checkpoints: Path, family: str, num_frames: int) -> None:
    frames = _noise(num_frames, 96, 128, 3)
    indices = tuple(3 * i for i in range(num_frames))
    info = VideoInfo(3 * num_frames, 12.5, 3 * num_frames / 12.5, 96, 128)
    decoded = DecodedVideo(frames, indices, tuple(i / 12.5 for i in indices), info)
    item = HFMediaProcessor(checkpoints / family).process("video", decoded)
    metadata = VideoMetadata(
        total_num_frames=3 * num_frames,
        fps=12.5,
        duration=3 * num_frames / 12.5,
        frames_indices=list(indices),
    )
    batch, placeholders = _reference(
        checkpoints / family,
        "video",
        videos=[frames],
        videos_kwargs={"do_sample_frames": False, "video_metadata": [metadata]},
    )
    _assert_same_inputs(item, batch)
    assert item.num_tokens == placeholders
    values = _values(item)
    match family:
        case "internvl":
            assert values == {"num_frames": (num_frames,)}
        case "qwen2_5_vl":
            assert values["second_per_grid_ts"] == tuple(batch["second_per_grid_ts"].tolist())
        case "qwen3_omni":
            assert values["video_second_per_grid"] == tuple(batch["video_second_per_grid"].tolist())
        case _:
            assert values["frames_indices"] == indices
            assert (values["fps"], values["total_num_frames"]) == ((12.5,), (3 * num_frames,))


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_omni"])
def test_sampled_by_policy_equals_sampled_by_the_processor(checkpoints: Path, family: str) -> None:
    video = _noise(60, 64, 96, 3)
    info = VideoInfo(60, 10.0, 6.0, 64, 96)
    processor = HFMediaProcessor(checkpoints / family)
    indices = processor.policy.sample_frames(info)
    decoded = DecodedVideo(video[list(indices)], indices, tuple(i / 10 for i in indices), info)
    metadata = VideoMetadata(total_num_frames=60, fps=10.0, duration=6.0)
    batch, placeholders = _reference(
        checkpoints / family, "video", videos=[video], videos_kwargs={"video_metadata": [metadata]}
    )
    item = processor.process("video", decoded)
    _assert_same_inputs(item, batch)
    assert item.num_tokens == placeholders


@pytest.mark.parametrize("num_samples", [16_000, 19_000, 2_000, 500_000])
def test_audio_inputs_equal_the_reference(checkpoints: Path, num_samples: int) -> None:
    samples = (np.random.default_rng(0).standard_normal(num_samples) * 0.1).astype(np.float32)
    item = HFMediaProcessor(checkpoints / "qwen3_omni").process("audio", DecodedAudio(samples, 16_000))
    batch, placeholders = _reference(checkpoints / "qwen3_omni", "audio", audio=[samples])
    _assert_same_inputs(item, batch)
    assert item.num_tokens == placeholders
    assert _values(item) == {
        "audio_feature_lengths": (int(batch["feature_attention_mask"].sum()),),
        "num_audio_tokens": (placeholders,),
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_modalities_are_those_of_the_processor(checkpoints: Path, family: str) -> None:
    assert HFMediaProcessor(checkpoints / family).modalities == frozenset(MODALITIES[family])


def test_one_frame_is_repeated_to_a_temporal_patch(checkpoints: Path) -> None:
    processor = HFMediaProcessor(checkpoints / "qwen3_vl")
    info = VideoInfo(1, 25.0, 0.04, 64, 64)
    indices = processor.policy.sample_frames(info)
    assert indices == (0, 0)
    decoded = DecodedVideo(_noise(2, 64, 64, 3), indices, (0.0, 0.0), info)
    assert processor.process("video", decoded).num_tokens > 0


@pytest.mark.parametrize(("num_frames", "expected"), [(10, tuple(range(10))), (63, tuple(range(0, 63, 2)))])
def test_models_without_own_sampling_get_evenly_spaced_frames(
    checkpoints: Path, num_frames: int, expected: tuple[int, ...]
) -> None:
    sample = HFMediaProcessor(checkpoints / "internvl").policy.sample_frames
    assert sample(VideoInfo(num_frames, 30.0, num_frames / 30, 64, 64)) == expected


def test_extreme_aspect_ratio_is_refused(checkpoints: Path) -> None:
    processor = HFMediaProcessor(checkpoints / "qwen2_5_vl")
    with pytest.raises(MediaInvalid, match="aspect ratio"):
        processor.process("image", DecodedImage(_noise(5, 1093, 3)))
    assert processor.process("image", DecodedImage(_noise(5, 1000, 3))).num_tokens > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_one_pixel_image_is_processed(checkpoints: Path, family: str) -> None:
    item = HFMediaProcessor(checkpoints / family).process("image", DecodedImage(_noise(1, 1, 3)))
    assert item.num_tokens > 0


@pytest.mark.parametrize("num_samples", [1, 159, 200])
def test_audio_shorter_than_half_a_window_is_refused_in_our_words(
    checkpoints: Path, num_samples: int
) -> None:
    processor = HFMediaProcessor(checkpoints / "qwen3_omni")
    with pytest.raises(MediaInvalid, match=f"too short: {num_samples} samples at 16000 Hz"):
        processor.process("audio", DecodedAudio(np.zeros(num_samples, np.float32), 16_000))
    assert processor.process("audio", DecodedAudio(np.zeros(201, np.float32), 16_000)).num_tokens > 0


def test_modality_that_the_model_lacks_is_refused(checkpoints: Path) -> None:
    with pytest.raises(UnsupportedModality):
        HFMediaProcessor(checkpoints / "internvl").process(
            "audio", DecodedAudio(np.zeros(99, np.float32), 16_000)
        )


def test_read_only_pixels_are_accepted(checkpoints: Path) -> None:
    pixels = _noise(60, 60, 3)
    pixels.flags.writeable = False
    assert HFMediaProcessor(checkpoints / "qwen3_vl").process("image", DecodedImage(pixels)).num_tokens > 0


def test_threads_share_a_processor(checkpoints: Path) -> None:
    processor = HFMediaProcessor(checkpoints / "qwen3_omni")
    sizes = [(60 + 20 * i, 200) for i in range(8)]
    media = [DecodedImage(_noise(*size, 3)) for size in sizes]
    expected = [processor.process("image", decoded) for decoded in media]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda decoded: processor.process("image", decoded), media))
    for mine, alone in zip(got, expected, strict=True):
        assert mine.metadata == alone.metadata
        assert torch.equal(mine.inputs["pixel_values"], alone.inputs["pixel_values"])


def test_options_digest_names_the_processor_config(checkpoints: Path, tmp_path: Path) -> None:
    before = HFMediaProcessor(tiny_checkpoint("qwen3_vl", tmp_path)).policy.options_digest
    assert before == HFMediaProcessor(checkpoints / "qwen3_vl").policy.options_digest
    config = tmp_path / "qwen3_vl" / "processor_config.json"
    config.write_text(config.read_text().replace("4096", "16384", 1))
    assert HFMediaProcessor(tmp_path / "qwen3_vl").policy.options_digest != before


def test_directory_without_processor_is_a_checkpoint_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="processor"):
        HFMediaProcessor(tmp_path)
