from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from transformers.processing_utils import ProcessorMixin

from tests.models.reference import load_processor, metadata_array
from triptych.errors import InvalidHandle, UnsupportedModel
from triptych.messages import MediaItem, Metadata, MetadataArray, Modality
from triptych.models.architecture import load_config
from triptych.models.placeholders import Placeholders, metadata_arrays

Checkpoints = Callable[[str], Path]


def placeholders(directory: Path) -> Placeholders:
    return Placeholders(load_processor(directory), load_config(directory))


def item(modality: Modality = "image") -> MediaItem:
    return MediaItem(modality=modality, index=1, source="x")


def grid(*values: float, name: str = "image_grid_thw", shape: tuple[int, ...] | None = None) -> MetadataArray:
    return MetadataArray(name=name, shape=shape or (len(values),), values=values)


@pytest.mark.parametrize("shape", [(3,), (1, 3), (1, 1, 3), (3, 1)], ids=str)
def test_flattened_and_nested_metadata_expand_alike(shape: tuple[int, ...], checkpoints: Checkpoints) -> None:
    expansion = placeholders(checkpoints("qwen3_omni")).expand(item(), (grid(1, 4, 6, shape=shape),))
    assert expansion.num_tokens == 6
    assert expansion.text == "<|image_pad|>" * 6


def test_markers_name_the_modalities_that_the_model_takes(checkpoints: Checkpoints) -> None:
    assert placeholders(checkpoints("qwen3_omni")).markers.keys() == {"image", "audio", "video"}
    assert placeholders(checkpoints("qwen2_5_vl")).markers.keys() == {"image", "video"}
    assert placeholders(checkpoints("internvl")).markers == {"image": "<IMG_CONTEXT>", "video": "<video>"}


def test_reserved_tokens_are_those_of_processor_and_configuration(checkpoints: Checkpoints) -> None:
    assert placeholders(checkpoints("qwen2_5_vl")).reserved == (
        "<|image_pad|>",
        "<|video_pad|>",
        "<|vision_end|>",
        "<|vision_start|>",
    )
    assert "<img>" in placeholders(checkpoints("internvl")).reserved


def test_a_video_written_as_images_counts_image_tokens(checkpoints: Checkpoints) -> None:
    frames = (grid(3, name="num_frames"),)
    expansion = placeholders(checkpoints("internvl")).expand(item("video"), frames)
    assert (expansion.row_token, expansion.num_tokens) == ("<IMG_CONTEXT>", 12)
    assert expansion.text.startswith("Frame1: <img>")


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ((), "lacks image_grid_thw"),
        ((grid(1, 4),), "has 2 values, not 3"),
        ((grid(1, 4, 0),), "not a positive count"),
        ((grid(1, -4, -4),), "not a positive count"),
        ((grid(1, 4.0, 4),), "not a positive count"),
        ((grid(1, 4, float("nan")),), "not finite"),
        ((grid(1, 1 << 20, 1 << 20),), "not a positive count"),
        ((grid(1, 1, 1),), "no room"),
        ((grid(1, 4, 4, name="video_grid_thw"),), "lacks image_grid_thw"),
    ],
)
def test_metadata_that_does_not_fit_names_the_item(
    metadata: Metadata, complaint: str, checkpoints: Checkpoints
) -> None:
    with pytest.raises(InvalidHandle, match=f"image 2: .*{complaint}"):
        placeholders(checkpoints("qwen3_omni")).expand(item(), metadata)


@pytest.mark.parametrize("more", [(), (grid(0.0, name="fps"),)])
def test_timestamps_need_frames_a_second(more: Metadata, checkpoints: Checkpoints) -> None:
    metadata = (grid(2, 4, 4, name="video_grid_thw"), grid(0, 1, 2, 3, name="frames_indices"), *more)
    with pytest.raises(InvalidHandle, match=r"video 2: .*fps"):
        placeholders(checkpoints("qwen3_vl")).expand(item("video"), metadata)


def test_too_few_timestamps_are_an_invalid_handle(checkpoints: Checkpoints) -> None:
    metadata = (
        grid(4, 4, 4, name="video_grid_thw"),
        grid(0, 1, name="frames_indices"),
        grid(2.0, name="fps"),
    )
    with pytest.raises(InvalidHandle, match="video 2: the metadata does not fit the model"):
        placeholders(checkpoints("qwen3_vl")).expand(item("video"), metadata)


def test_a_processor_that_cannot_count_is_refused_by_name(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = checkpoints("qwen2_5_vl")
    monkeypatch.setattr(
        type(load_processor(directory)), "replace_video_token", ProcessorMixin.replace_video_token
    )
    with pytest.raises(UnsupportedModel, match="Qwen2_5_VLProcessor cannot tell how many tokens video"):
        placeholders(directory)


def test_arrays_have_one_item_on_the_first_axis() -> None:
    arrays = metadata_arrays("image 1", (grid(1, 4, 6), grid(0, 2, 4, 6, name="frames_indices")))
    assert {name: array.shape for name, array in arrays.items()} == {
        "image_grid_thw": (1, 3),
        "frames_indices": (4,),
    }
    assert metadata_array("x", np.asarray([[1, 2]])).shape == (1, 2)
