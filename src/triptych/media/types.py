"""What decoding yields, and what it has to be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from triptych.messages import MediaItem, StageTiming


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """`pixels`: [height, width, 3], uint8 RGB, upright (EXIF applied), alpha laid on the background."""

    pixels: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """What is known of a video before sampling. `num_frames` is exact: counted from packets if need be."""

    num_frames: int
    frames_per_second: float
    """Average over the whole video."""
    duration_seconds: float
    height: int
    width: int
    num_lost_frames: int = 0
    """Frames that the container announces but that are damaged beyond decoding; not in `num_frames`."""


@dataclass(frozen=True, slots=True)
class DecodedVideo:
    """`frames`: [num_sampled, height, width, 3], uint8 RGB, upright.

    `frame_indices[i]` is the source index (decode order by presentation time) of `frames[i]`,
    `timestamps_seconds[i]` its presentation time relative to the first frame.
    """

    frames: NDArray[np.uint8]
    frame_indices: tuple[int, ...]
    timestamps_seconds: tuple[float, ...]
    info: VideoInfo


@dataclass(frozen=True, slots=True)
class DecodedAudio:
    """`samples`: [num_samples], float32, mono by mean, -1 to 1, at `sample_rate_hz`."""

    samples: NDArray[np.float32]
    sample_rate_hz: int


Decoded = DecodedImage | DecodedVideo | DecodedAudio


class FrameSampler(Protocol):
    """Which frames of a video the model wants: ascending indices into [0, num_frames), repeats allowed."""

    def __call__(self, info: VideoInfo) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class DecodePolicy:
    """What the model wants of decoding. `options_digest` names everything here that changes the output."""

    audio_sample_rate_hz: int
    sample_frames: FrameSampler
    options_digest: str


@dataclass(frozen=True, slots=True)
class PreparedItem:
    """A fetched and decoded item. `source_digest` is the SHA-256 (hex) of its source bytes.

    `timings` are this item's own `fetch` and `media_decode`, waiting included. Items run together: the
    largest, not the sum, is what a request waited.
    """

    item: MediaItem
    source_digest: str
    decoded: Decoded
    timings: tuple[StageTiming, ...]


@dataclass(frozen=True, slots=True)
class SkippedItem:
    """A fetched item that the caller did not want decoded: its embedding is there already.

    `timings` holds `fetch` only.
    """

    item: MediaItem
    source_digest: str
    timings: tuple[StageTiming, ...]
