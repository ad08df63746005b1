from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.media.sample import RateSampler, UniformSampler, spread
from triptych.media.types import VideoInfo


def info(num_frames: int, rate: float) -> VideoInfo:
    return VideoInfo(
        num_frames=num_frames, frames_per_second=rate, duration_seconds=num_frames / rate, height=48, width=64
    )


@pytest.mark.parametrize(
    ("num_frames", "count", "expected"),
    [(10, 4, (0, 3, 6, 9)), (300, 4, (0, 99, 199, 299)), (1, 1, (0,)), (5, 1, (0,)), (3, 3, (0, 1, 2))],
)
def test_spread_reaches_from_first_to_last(num_frames: int, count: int, expected: tuple[int, ...]) -> None:
    assert spread(num_frames, count) == expected


def test_uniform_takes_all_of_a_short_video() -> None:
    assert UniformSampler(8)(info(3, 10)) == (0, 1, 2)


def test_uniform_repeats_the_last_frame_to_reach_the_minimum() -> None:
    assert UniformSampler(8, min_frames=4)(info(2, 10)) == (0, 1, 1, 1)


def test_rate_follows_duration_between_its_bounds() -> None:
    sampler = RateSampler(2, min_frames=4, max_frames=16)
    assert len(sampler(info(150, 30))) == 10
    assert len(sampler(info(30, 30))) == 4
    assert len(sampler(info(3000, 30))) == 16


@given(st.integers(1, 5000), st.integers(1, 100), st.floats(0.1, 60), st.floats(1, 120))
def test_indices_ascend_within_the_video(num_frames: int, count: int, wanted: float, rate: float) -> None:
    for sampler in (UniformSampler(count, min_frames=2), RateSampler(wanted, 2, max(2, count))):
        indices = sampler(info(num_frames, rate))
        assert len(indices) >= 2
        assert list(indices) == sorted(indices)
        assert indices[0] == 0
        assert indices[-1] < num_frames
