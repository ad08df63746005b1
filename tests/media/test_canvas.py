from __future__ import annotations

import numpy as np
from av.video.frame import VideoFrame

from tests.media.make_video import picture, shown_indices
from triptych.media.canvas import Canvas, upright_size


def frame(index: int, width: int = 64, height: int = 48) -> VideoFrame:
    return VideoFrame.from_ndarray(picture(index, width, height), format="rgb24")


def test_frame_goes_to_every_place_with_its_number() -> None:
    canvas = Canvas(48, 64, [3, 7, 7])
    canvas.put(7, frame(7))
    canvas.put(3, frame(3))
    canvas.put(5, frame(5))
    assert shown_indices(canvas.frames) == [3, 7, 7]
    np.testing.assert_array_equal(canvas.frames[1], picture(7, 64, 48))


def test_frame_of_another_size_is_scaled_to_the_canvas() -> None:
    canvas = Canvas(48, 64, [2])
    canvas.put(2, frame(2, width=128, height=96))
    assert shown_indices(canvas.frames) == [2]


def test_size_of_a_frame_without_rotation_is_its_own() -> None:
    assert upright_size(frame(0)) == (48, 64)
