"""Synthetic decoded media for tests of the models package."""

from __future__ import annotations

import numpy as np

from triptych.media.types import DecodedAudio, DecodedImage, DecodedVideo, VideoInfo


def image(height: int, width: int, seed: int = 0) -> DecodedImage:
    return DecodedImage(np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8))


def audio(num_samples: int, seed: int = 0) -> DecodedAudio:
    samples = np.random.default_rng(seed).standard_normal(num_samples) * 0.1
    return DecodedAudio(samples.astype(np.float32), 16_000)


def video(num_frames: int, height: int = 96, width: int = 128, seed: int = 0) -> DecodedVideo:
    """Every third frame of a video with 12.5 frames a second."""
    frames = np.random.default_rng(seed).integers(0, 255, (num_frames, height, width, 3), dtype=np.uint8)
    indices = tuple(3 * i for i in range(num_frames))
    info = VideoInfo(3 * num_frames, 12.5, 3 * num_frames / 12.5, height, width)
    return DecodedVideo(frames, indices, tuple(i / 12.5 for i in indices), info)
