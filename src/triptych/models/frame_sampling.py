"""Which frames of a video a model wants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
from transformers.video_utils import VideoMetadata

from triptych.media.types import VideoInfo

DEFAULT_MAX_FRAMES = 32
"""For models that do not sample by themselves: all frames of a short clip, evenly spaced ones of a longer."""


class VideoProcessor(Protocol):
    """What sampling needs of a Transformers video processor."""

    do_sample_frames: bool | None
    num_frames: int | None

    def sample_frames(self, metadata: VideoMetadata) -> object: ...


@dataclass(frozen=True, slots=True)
class ModelFrameSampler:
    """The processor's own choice where it samples (`do_sample_frames`), else evenly spaced frames.

    Never fewer than `temporal_patch_size` frames: the last one is repeated.
    """

    processor: VideoProcessor | None
    temporal_patch_size: int

    def __call__(self, info: VideoInfo) -> tuple[int, ...]:
        chosen = self._own(info) or self._even(info)
        return chosen + (chosen[-1],) * (self.temporal_patch_size - len(chosen))

    def _own(self, info: VideoInfo) -> tuple[int, ...]:
        if self.processor is None or not self.processor.do_sample_frames:
            return ()
        try:
            indices = self.processor.sample_frames(video_metadata(info))
        except (ValueError, ZeroDivisionError):  # fewer frames than it wants
            return ()
        return tuple(int(index) for index in np.asarray(indices))

    def _even(self, info: VideoInfo) -> tuple[int, ...]:
        limit = (None if self.processor is None else self.processor.num_frames) or DEFAULT_MAX_FRAMES
        count = min(info.num_frames, limit)
        return tuple(cast("list[int]", np.linspace(0, info.num_frames - 1, count, dtype=int).tolist()))


def video_metadata(info: VideoInfo, indices: tuple[int, ...] | None = None) -> VideoMetadata:
    """Transformers' description of a video; processors may write into it, so each call makes a new one."""
    return VideoMetadata(
        total_num_frames=info.num_frames,
        fps=info.frames_per_second,
        width=info.width,
        height=info.height,
        duration=info.duration_seconds,
        frames_indices=None if indices is None else list(indices),
    )
