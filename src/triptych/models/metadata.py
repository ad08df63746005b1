"""An item's metadata: what the language half must know of it, by the names that Transformers uses.

name                   shape   families                  what
image_grid_thw         [1, 3]  Qwen-VL, Omni             patches: time, height, width
num_patches            [1]     InternVL                  crops of the image, the thumbnail included
video_grid_thw         [1, 3]  Qwen-VL, Omni             patches: time, height, width
second_per_grid_ts     [1]     Qwen2.5-VL                seconds a temporal patch
video_second_per_grid  [1]     Omni                      seconds a temporal patch
frames_indices         [n]     processors that return    source indices of the sampled frames
fps                    [1]     video metadata            frames a second of the source
total_num_frames       [1]     (Qwen-VL)                 frames of the source
num_frames             [1]     InternVL                  sampled frames
audio_feature_lengths  [1]     Omni                      mel frames without padding
num_audio_tokens       [1]     Omni                      encoder rows
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from triptych.messages import Metadata, MetadataArray

_COPIED = (
    "image_grid_thw",
    "num_patches",
    "video_grid_thw",
    "second_per_grid_ts",
    "video_second_per_grid",
    "num_audio_tokens",
)
"""Outputs of processors that are metadata as they are."""


def item_metadata(processed: Mapping[str, object], frames: Mapping[str, object]) -> Metadata:
    """Metadata of the one item that a processor turned into `processed`.

    `frames` holds how a video was sampled (`frames_indices`, `fps`, `total_num_frames`); used only where the
    processor itself works with it.
    """
    # As tensors, as the processor hands them to the model: rounding to float32 decides rotary positions.
    arrays: dict[str, object] = {
        name: torch.as_tensor(processed[name]) for name in _COPIED if name in processed
    }
    if "video_metadata" in processed:
        arrays.update(frames)
    mask = processed.get("feature_attention_mask")
    if isinstance(mask, torch.Tensor):
        arrays["audio_feature_lengths"] = mask.sum(-1)
    videos = processed.get("pixel_values_videos")
    if isinstance(videos, torch.Tensor) and videos.dim() == 5:  # [videos, frames, channels, height, width]
        arrays["num_frames"] = [videos.shape[1]]
    return tuple(_array(name, arrays[name]) for name in sorted(arrays))


def _array(name: str, value: object) -> MetadataArray:
    array = np.asarray(value)
    return MetadataArray(name=name, shape=array.shape, values=tuple(array.reshape(-1).tolist()))
