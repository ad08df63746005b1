"""What a video's packets tell without decoding: how many frames, when shown, and where to start for each."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from triptych.media.types import VideoInfo

_SEEK_COST = 8
"""What one seek costs, in decoded frames: search, flush, and the decoder's delay."""
_MIN_SAVING = 64
"""Frames that seeking must save. Short videos are decoded through, so that damage anywhere is noticed."""


@dataclass(frozen=True, slots=True)
class PacketFacts:
    pts: int | None
    is_keyframe: bool


@dataclass(frozen=True, slots=True)
class Timeline:
    """Presentation times of all frames, ascending, in units of `time_base` seconds."""

    pts: tuple[int, ...]
    time_base: Fraction
    announced_rate: Fraction | None
    """Frames per second, by the container."""

    @property
    def rate(self) -> Fraction:
        """Average frames per second, from the times of the first and last frame.

        Containers round times to their time base; where that alone explains the difference from the rate that
        they announce, the announced rate is the exact one.
        """
        announced = self.announced_rate or Fraction(1)
        span = (self.pts[-1] - self.pts[0]) * self.time_base
        if span <= 0 or abs(span - (len(self.pts) - 1) / announced) <= self.time_base:
            return announced
        return (len(self.pts) - 1) / span

    def seconds(self, index: int) -> float:
        """Presentation time of a frame, from the first one."""
        return float((self.pts[index] - self.pts[0]) * self.time_base)

    def info(self, height: int, width: int, num_lost_frames: int = 0) -> VideoInfo:
        rate = self.rate
        return VideoInfo(
            num_frames=len(self.pts),
            frames_per_second=float(rate),
            duration_seconds=float(len(self.pts) / rate),
            height=height,
            width=width,
            num_lost_frames=num_lost_frames,
        )


@dataclass(frozen=True, slots=True)
class Run:
    """Decode from a keyframe until the last frame wanted; `wanted` and both ends are presentation times."""

    start_pts: int
    last_pts: int
    wanted: frozenset[int]
    num_frames: int
    """Frames shown from `start_pts` to `last_pts`, both included: fewer decoded means that some are lost."""


@dataclass(frozen=True, slots=True)
class FrameTable:
    """One entry a frame. `packet_pts[p]` is when the frame of the p-th packet, in decode order, is shown."""

    timeline: Timeline
    packet_pts: tuple[int, ...]
    keyframes: tuple[int, ...]
    """Packet positions at which decoding can start, ascending."""

    def decode_through(self, indices: Sequence[int]) -> tuple[Run, ...]:
        """One run from the start to the last of `indices`."""
        wanted = frozenset(self.timeline.pts[i] for i in indices)
        return (self._run(0, wanted),)

    def plan(self, indices: Sequence[int]) -> tuple[Run, ...]:
        """The runs that decode the frames at `indices` (ascending): by seeking if that pays."""
        position_of = {pts: position for position, pts in enumerate(self.packet_pts)}
        runs: list[tuple[int, int, set[int]]] = []
        for pts in sorted({self.timeline.pts[i] for i in indices}):
            position = position_of[pts]
            start = self._start_for(pts, position)
            if runs and start <= runs[-1][1] + _SEEK_COST:
                first, last, wanted = runs.pop()
                runs.append((first, max(last, position), wanted | {pts}))
            else:
                runs.append((start, position, {pts}))
        cost = sum(last + 1 - first + _SEEK_COST for first, last, _ in runs)
        through = self.decode_through(indices)
        if cost + _MIN_SAVING > through[0].num_frames:
            return through
        return tuple(self._run(first, frozenset(wanted)) for first, _, wanted in runs)

    def _start_for(self, pts: int, position: int) -> int:
        """The packet position at which to start for the frame with this time.

        Frames that are decoded after a keyframe but shown before it may refer to what was before it:

            decode order   I0 P4 B2 | I8 B6        B6 is shown before I8 and needs P4: start at I0
        """
        place = bisect.bisect_right(self.keyframes, position) - 1
        while place > 0 and self.packet_pts[self.keyframes[place]] > pts:
            place -= 1
        return self.keyframes[max(place, 0)]

    def _run(self, position: int, wanted: frozenset[int]) -> Run:
        start_pts, last_pts = self.packet_pts[position], max(wanted)
        shown = bisect.bisect_right(self.timeline.pts, last_pts) - bisect.bisect_left(
            self.timeline.pts, start_pts
        )
        return Run(start_pts, last_pts, wanted, shown)


def frame_table(
    packets: Sequence[PacketFacts], time_base: Fraction, announced_rate: Fraction | None
) -> FrameTable | None:
    """Place the frames of a stream. None: its packets do not say (none, or times missing or repeated)."""
    packet_pts = tuple(packet.pts for packet in packets if packet.pts is not None)
    pts = sorted(packet_pts)
    if not pts or len(pts) < len(packets) or any(a == b for a, b in itertools.pairwise(pts)):
        return None
    keyframes = tuple(position for position, packet in enumerate(packets) if packet.is_keyframe)
    return FrameTable(Timeline(tuple(pts), time_base, announced_rate), packet_pts, keyframes or (0,))
