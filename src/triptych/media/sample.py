"""Which frames of a video to take, where the model has no rule of its own."""

from __future__ import annotations

from dataclasses import dataclass

from triptych.media.types import VideoInfo


def spread(num_frames: int, count: int) -> tuple[int, ...]:
    """`count` indices from the first frame to the last, evenly spaced, rounded down.

    10 frames, 4 wanted: 0, 3, 6, 9. 300 frames, 4 wanted: 0, 99, 199, 299. Integers throughout: `linspace`
    would round 99.99999 down to 99 where 100 is exact.
    """
    if count == 1:
        return (0,)
    return tuple(i * (num_frames - 1) // (count - 1) for i in range(count))


def padded(indices: tuple[int, ...], min_frames: int) -> tuple[int, ...]:
    """The last frame repeated until there are `min_frames`."""
    return indices + indices[-1:] * (min_frames - len(indices))


@dataclass(frozen=True, slots=True)
class UniformSampler:
    """`num_frames` evenly spaced over the video, all of them if it has fewer."""

    num_frames: int
    min_frames: int = 1
    """Shorter videos repeat their last frame."""

    def __call__(self, info: VideoInfo) -> tuple[int, ...]:
        count = min(self.num_frames, info.num_frames)
        return padded(spread(info.num_frames, count), self.min_frames)


@dataclass(frozen=True, slots=True)
class RateSampler:
    """About `frames_per_second` of the video's time, at least `min_frames` and at most `max_frames`, evenly
    spaced. A video never yields more frames than it has, except to reach `min_frames` by repeating its last.
    """

    frames_per_second: float
    min_frames: int
    max_frames: int

    def __call__(self, info: VideoInfo) -> tuple[int, ...]:
        wanted = int(info.duration_seconds * self.frames_per_second)
        count = min(max(wanted, self.min_frames, 1), self.max_frames, info.num_frames)
        return padded(spread(info.num_frames, count), self.min_frames)
