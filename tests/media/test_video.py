from __future__ import annotations

import io
import itertools
from dataclasses import dataclass

import av
import numpy as np
import pytest

from tests.media.make_audio import muxed, sine
from tests.media.make_video import (
    HALF,
    QUARTER_CLOCKWISE,
    QUARTER_COUNTERCLOCKWISE,
    shown_indices,
    turned,
    video,
    with_packets_filled,
)
from triptych.config import DecodeConfig
from triptych.errors import InternalError, MediaInvalid, MediaLimitExceeded
from triptych.media.sample import RateSampler, UniformSampler
from triptych.media.types import VideoInfo
from triptych.media.video import decode_video

CONFIG = DecodeConfig()
ALL = UniformSampler(1000)


@dataclass(frozen=True)
class Fixed:
    indices: tuple[int, ...]

    def __call__(self, info: VideoInfo) -> tuple[int, ...]:
        return self.indices


@pytest.mark.parametrize(
    ("matrix", "shape", "corner"),
    [
        (QUARTER_CLOCKWISE, (64, 48), (4, -4)),
        (HALF, (48, 64), (-4, -4)),
        (QUARTER_COUNTERCLOCKWISE, (64, 48), (-4, 4)),
    ],
)
def test_rotated_video_is_shown_upright(
    matrix: tuple[int, ...], shape: tuple[int, int], corner: tuple[int, int]
) -> None:
    decoded = decode_video(turned(video(4), matrix), ALL, CONFIG)
    assert decoded.frames.shape == (4, *shape, 3)
    assert (decoded.info.height, decoded.info.width) == shape
    assert decoded.frames[0][corner].min() > 240


@pytest.mark.parametrize("container", ["matroska", "mp4"])
def test_variable_rate_keeps_real_times(container: str) -> None:
    pts_ms = [0, 100, 200, 2000, 2100, 5000, 5033, 5066]
    decoded = decode_video(video(8, container=container, pts_ms=pts_ms), ALL, CONFIG)
    np.testing.assert_allclose(decoded.timestamps_seconds, [t / 1000 for t in pts_ms], atol=1e-3)
    assert shown_indices(decoded.frames) == list(range(8))
    assert decoded.info.frames_per_second == pytest.approx(7 / 5.066, abs=1e-3)


@pytest.mark.parametrize(
    ("num_frames", "rate", "expected"), [(10, 5, (0, 3, 6, 9)), (300, 30, (0, 99, 199, 299))]
)
@pytest.mark.parametrize("container", ["mp4", "matroska"])
def test_sampled_frames_are_those_reported(
    container: str, num_frames: int, rate: int, expected: tuple[int, ...]
) -> None:
    decoded = decode_video(video(num_frames, rate, container=container), UniformSampler(4), CONFIG)
    assert decoded.frame_indices == expected
    assert shown_indices(decoded.frames) == [index % 256 for index in expected]
    assert decoded.info.frames_per_second == rate
    assert decoded.info.num_frames == num_frames
    assert decoded.info.duration_seconds == pytest.approx(num_frames / rate)


@pytest.mark.parametrize(
    ("container", "codec", "pixel_format"),
    [
        ("webm", "libvpx-vp9", "yuv444p"),
        ("webm", "libvpx", "yuv420p"),
        ("asf", "mpeg4", "yuv420p"),
        ("avi", "mpeg4", "yuv420p"),
        ("avi", "libx264", "yuv444p"),
        ("h264", "libx264", "yuv444p"),
        ("mpegts", "libx264", "yuv444p"),
        ("matroska", "libx264", "yuv444p"),
    ],
)
def test_frames_are_counted_where_the_container_does_not(
    container: str, codec: str, pixel_format: str
) -> None:
    decoded = decode_video(
        video(20, container=container, codec=codec, pixel_format=pixel_format), ALL, CONFIG
    )
    assert decoded.info.num_frames == 20
    assert decoded.info.num_lost_frames == 0
    assert shown_indices(decoded.frames) == list(range(20))
    assert all(a < b for a, b in itertools.pairwise(decoded.timestamps_seconds))


def test_invisible_reference_frames_are_no_frames() -> None:
    options = {"auto-alt-ref": "1", "lag-in-frames": "16", "arnr-maxframes": "7"}
    data = video(60, container="webm", codec="libvpx", pixel_format="yuv420p", options=options)
    decoded = decode_video(data, ALL, CONFIG)
    assert decoded.info.num_frames == 60
    assert decoded.info.num_lost_frames == 0
    assert shown_indices(decoded.frames) == list(range(60))


@pytest.mark.parametrize(("codec", "pixel_format"), [("libsvtav1", "yuv420p"), ("libx265", "yuv420p")])
def test_newer_codecs_in_mp4_decode(codec: str, pixel_format: str) -> None:
    options = {"x265-params": "log-level=none"} if codec == "libx265" else {}
    data = video(10, codec=codec, pixel_format=pixel_format, width=128, height=96, options=options)
    decoded = decode_video(data, ALL, CONFIG)
    assert shown_indices(decoded.frames) == list(range(10))


@pytest.mark.parametrize("fill", [0x00, 0xFF])
@pytest.mark.parametrize("count", [64, 2])
def test_damaged_packets_are_not_counted_as_frames(fill: int, count: int) -> None:
    whole = video(30, options={"g": "10", "bf": "0"})
    decoded = decode_video(with_packets_filled(whole, [12, 13], fill), UniformSampler(count), CONFIG)
    assert decoded.info.num_frames == 28
    assert decoded.info.num_lost_frames == 2
    assert decoded.frame_indices[-1] == 27
    assert decoded.timestamps_seconds[-1] == pytest.approx(2.9)
    assert shown_indices(decoded.frames[-1:]) == [29]
    if count == 64:
        assert shown_indices(decoded.frames[:12]) == list(range(12))
        np.testing.assert_allclose(decoded.timestamps_seconds[10:14], [1.0, 1.1, 1.4, 1.5])


def test_unknown_codec_is_refused() -> None:
    with pytest.raises(MediaInvalid, match="codec that is not supported"):
        decode_video(video(3).replace(b"avc1", b"zzzz"), ALL, CONFIG)


def test_mostly_damaged_video_is_refused() -> None:
    whole = video(30, options={"g": "10", "bf": "0"})
    with pytest.raises(MediaInvalid, match="decode error"):
        decode_video(with_packets_filled(whole, range(1, 30), 0xFF), ALL, CONFIG)


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_truncated_mp4_is_refused(share: float) -> None:
    whole = video(30)
    with pytest.raises(MediaInvalid, match="invalid data"):
        decode_video(whole[: int(len(whole) * share)], ALL, CONFIG)


@pytest.mark.parametrize(
    ("container", "container_options"),
    [
        ("mp4", {"movflags": "frag_keyframe+empty_moov"}),
        ("matroska", {}),
        ("mpegts", {}),
    ],
)
def test_truncated_stream_claims_only_frames_that_decode(
    container: str, container_options: dict[str, str]
) -> None:
    options = {"g": "10", "bf": "0"}
    whole = video(60, container=container, options=options, container_options=container_options)
    decoded = decode_video(whole[: int(len(whole) * 0.7)], ALL, CONFIG)
    assert 10 <= decoded.info.num_frames < 60
    assert len(decoded.frames) == decoded.info.num_frames
    assert shown_indices(decoded.frames) == list(range(decoded.info.num_frames))


@pytest.mark.parametrize(
    "data", [b"", b"not a video", b"#EXTM3U\n#EXTINF:10,\nhttp://127.0.0.1:1/x.ts\n#EXT-X-ENDLIST\n"]
)
def test_bytes_that_are_no_video_are_refused(data: bytes) -> None:
    with pytest.raises(MediaInvalid, match="invalid data"):
        decode_video(data, ALL, CONFIG)


def test_one_frame_is_repeated_to_the_minimum() -> None:
    decoded = decode_video(video(1, 30), UniformSampler(8, min_frames=2), CONFIG)
    assert decoded.frame_indices == (0, 0)
    assert len(decoded.frames) == 2
    assert decoded.info.num_frames == 1


def test_short_video_at_one_frame_a_second_yields_frames() -> None:
    decoded = decode_video(video(5, 30), RateSampler(1, min_frames=2, max_frames=8), CONFIG)
    assert decoded.frame_indices == (0, 4)
    assert shown_indices(decoded.frames) == [0, 4]


def test_file_without_video_is_refused() -> None:
    with pytest.raises(MediaInvalid, match="no video stream"):
        decode_video(muxed(sine(48_000)[None], 48_000, "mp4"), ALL, CONFIG)


@pytest.mark.parametrize(
    ("container", "options"),
    [
        ("mp4", {"g": "50"}),
        ("mp4", {"g": "25", "bf": "3", "x264-params": "open-gop=1"}),
        ("mp4", {"g": "1"}),
        ("matroska", {"g": "30", "bf": "3"}),
        ("matroska", {"g": "25", "bf": "3", "x264-params": "open-gop=1"}),
        ("mpegts", {"g": "25", "bf": "3"}),
    ],
)
def test_frames_found_by_seeking_equal_those_decoded_through(container: str, options: dict[str, str]) -> None:
    data = video(600, 30, container=container, options=options, pixel_format="yuv420p")
    indices = (3, 199, 200, 201, 224, 402, 402, 599)
    decoded = decode_video(data, Fixed(indices), CONFIG)
    with av.open(io.BytesIO(data), "r") as opened:
        through = [frame.to_ndarray(format="rgb24") for frame in opened.decode(video=0)]
    assert decoded.info.num_frames == len(through) == 600
    np.testing.assert_array_equal(decoded.frames, np.stack([through[i] for i in indices]))
    np.testing.assert_allclose(decoded.timestamps_seconds, [i / 30 for i in indices], atol=1e-3)


def test_full_range_colors_of_hd_matrix_are_kept() -> None:
    decoded = decode_video(video(2, options={"x264-params": "colormatrix=bt470bg"}), ALL, CONFIG)
    np.testing.assert_allclose(decoded.frames[0, 30, 40].astype(int), [8, 8, 128], atol=4)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (DecodeConfig(max_video_pixels=1000), "pixels"),
        (DecodeConfig(max_video_frames=5), "sampled frames"),
        (DecodeConfig(max_video_seconds=0.5), "duration"),
        (DecodeConfig(max_decoded_bytes=20_000), "bytes"),
    ],
)
def test_limits_are_enforced(config: DecodeConfig, words: str) -> None:
    with pytest.raises(MediaLimitExceeded, match=words):
        decode_video(video(10), ALL, config)


@pytest.mark.parametrize("indices", [(), (5, 3), (0, 10), (-1,)])
def test_sampler_outside_the_video_is_our_error(indices: tuple[int, ...]) -> None:
    with pytest.raises(InternalError):
        decode_video(video(10), Fixed(indices), CONFIG)
