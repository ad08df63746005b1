"""Frames are chosen by the processor where it samples, evenly otherwise."""

from __future__ import annotations

from typing import cast

import pytest
from transformers import Qwen2VLVideoProcessor, Qwen3VLVideoProcessor

from triptych.media.types import VideoInfo
from triptych.models.frame_sampling import ModelFrameSampler, VideoProcessor, video_metadata


def _info(num_frames: int, frames_per_second: float = 30.0) -> VideoInfo:
    return VideoInfo(num_frames, frames_per_second, num_frames / frames_per_second, 48, 64)


def _sampler(processor: object) -> ModelFrameSampler:
    return ModelFrameSampler(cast(VideoProcessor, processor), temporal_patch_size=2)


def test_processor_that_samples_decides() -> None:
    processor = Qwen3VLVideoProcessor()
    expected = processor.sample_frames(video_metadata(_info(300)))
    assert _sampler(processor)(_info(300)) == tuple(expected.tolist())
    assert len(expected) == 20


def test_fewer_frames_than_the_processor_wants_are_all_taken() -> None:
    processor = Qwen2VLVideoProcessor(do_sample_frames=True, num_frames=8)
    assert _sampler(processor)(_info(3)) == (0, 1, 2)
    assert _sampler(processor)(_info(16)) == tuple(range(0, 16, 2))


def test_single_frame_fills_a_temporal_patch() -> None:
    assert ModelFrameSampler(None, 2)(_info(1)) == (0, 0)
    assert ModelFrameSampler(None, 1)(_info(1)) == (0,)


@pytest.mark.parametrize(
    ("num_frames", "expected"), [(10, (0, 3, 6, 9)), (300, (0, 99, 199, 299)), (3, (0, 1, 2))]
)
def test_configured_number_of_frames_is_evenly_spaced(num_frames: int, expected: tuple[int, ...]) -> None:
    processor = Qwen2VLVideoProcessor(num_frames=4)
    assert _sampler(processor)(_info(num_frames)) == expected


def test_metadata_is_made_anew_for_each_call() -> None:
    first, second = video_metadata(_info(3), (0, 1)), video_metadata(_info(3), (0, 1))
    assert first.frames_indices is not None
    first.frames_indices.append(9)
    assert second.frames_indices == [0, 1]
