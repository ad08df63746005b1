"""Metadata are named numeric arrays, sorted, as the processor would hand them to the model."""

from __future__ import annotations

import torch

from triptych.models.metadata import item_metadata


def test_names_are_sorted_and_pixels_stay_behind() -> None:
    processed = {
        "video_grid_thw": torch.tensor([[2, 4, 6]]),
        "second_per_grid_ts": [0.48],
        "pixel_values_videos": torch.zeros(48, 8),
    }
    arrays = item_metadata(processed, {"fps": [25.0]})
    assert [(array.name, array.shape) for array in arrays] == [
        ("second_per_grid_ts", (1,)),
        ("video_grid_thw", (1, 3)),
    ]
    assert arrays[1].values == (2, 4, 6)


def test_seconds_are_rounded_as_the_model_sees_them() -> None:
    [array] = item_metadata({"second_per_grid_ts": [0.48]}, {})
    assert array.values == (float(torch.tensor(0.48)),)


def test_sampling_is_kept_where_the_processor_uses_it() -> None:
    frames = {"frames_indices": (0, 3), "fps": [12.5], "total_num_frames": [6]}
    names = [array.name for array in item_metadata({"video_metadata": []}, frames)]
    assert names == ["fps", "frames_indices", "total_num_frames"]


def test_lengths_are_counted_from_mask_and_frames() -> None:
    [lengths] = item_metadata({"feature_attention_mask": torch.tensor([[1, 1, 0]])}, {})
    assert (lengths.name, lengths.values) == ("audio_feature_lengths", (2,))
    [frames] = item_metadata({"pixel_values_videos": torch.zeros(1, 5, 3, 8, 8)}, {})
    assert (frames.name, frames.values) == ("num_frames", (5,))
