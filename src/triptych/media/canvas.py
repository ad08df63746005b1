"""Where decoded frames become upright RGB pixels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from av.video.frame import VideoFrame
from numpy.typing import NDArray


class Canvas:
    """Room for one picture a place. A frame is put to every place that carries its number.

    `frames`: [len(places), height, width, 3], uint8 RGB; undefined where nothing was put yet.
    """

    def __init__(self, height: int, width: int, places: Sequence[int]) -> None:
        self.frames: NDArray[np.uint8] = np.empty((len(places), height, width, 3), np.uint8)
        self._places = np.asarray(places)

    def put(self, place: int, frame: VideoFrame) -> None:
        """Convert, turn upright, and scale if a stream changes its size midway."""
        turns = _quarter_turns(frame)
        height, width = self.frames.shape[1:3]
        if turns % 2:
            height, width = width, height
        pixels = frame.reformat(width=width, height=height, format="rgb24", threads=1).to_ndarray()
        self.frames[self._places == place] = np.rot90(pixels, turns)


def upright_size(frame: VideoFrame) -> tuple[int, int]:
    """Height and width as shown."""
    return (frame.width, frame.height) if _quarter_turns(frame) % 2 else (frame.height, frame.width)


def _quarter_turns(frame: VideoFrame) -> int:
    """Counter-clockwise, as `np.rot90` counts. A display matrix may hold any angle: the nearest quarter."""
    return round(frame.rotation / 90)
