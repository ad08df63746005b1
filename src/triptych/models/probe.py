"""A small item of each modality, for measuring what an encoder yields."""

from __future__ import annotations

import numpy as np

from triptych.media.types import DecodedAudio, DecodedImage, DecodedVideo, VideoInfo
from triptych.messages import Modality
from triptych.models.interface import MediaProcessor, ProcessedItem

_SIDE = 64
_VIDEO = VideoInfo(num_frames=4, frames_per_second=2.0, duration_seconds=2.0, height=_SIDE, width=_SIDE)


def probe_item(processor: MediaProcessor, modality: Modality) -> ProcessedItem:
    """Grey pixels, or a second of silence."""
    match modality:
        case "image":
            return processor.process(modality, DecodedImage(np.full((_SIDE, _SIDE, 3), 128, np.uint8)))
        case "audio":
            rate = processor.policy.audio_sample_rate_hz
            return processor.process(modality, DecodedAudio(np.zeros(rate, np.float32), rate))
        case "video":
            indices = processor.policy.sample_frames(_VIDEO)
            frames = np.full((len(indices), _SIDE, _SIDE, 3), 128, np.uint8)
            seconds = tuple(index / _VIDEO.frames_per_second for index in indices)
            return processor.process(modality, DecodedVideo(frames, indices, seconds, _VIDEO))
