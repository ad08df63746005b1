"""Video files made on the spot. Every frame carries its index in its colour and a white block top-left."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping, Sequence
from fractions import Fraction

import av
import numpy as np
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray


def picture(index: int, width: int, height: int) -> NDArray[np.uint8]:
    pixels = np.empty((height, width, 3), np.uint8)
    pixels[:] = (16 * (index % 16) + 8, 16 * (index // 16 % 16) + 8, 128)
    pixels[: height // 4, : width // 4] = 255
    return pixels


def shown_indices(frames: NDArray[np.uint8]) -> list[int]:
    """The index, modulo 256, that each frame's colour says."""
    height, width = frames.shape[1:3]
    colors = frames[:, height * 3 // 4, width * 3 // 4, :2].astype(float)
    return [round((red - 8) / 16) + 16 * round((green - 8) / 16) for red, green in colors]


def video(
    num_frames: int,
    rate: int = 10,
    *,
    container: str = "mp4",
    codec: str = "libx264",
    pixel_format: str = "yuv444p",
    width: int = 64,
    height: int = 48,
    options: Mapping[str, str] | None = None,
    container_options: Mapping[str, str] | None = None,
    pts_ms: Sequence[int] | None = None,
) -> bytes:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container, options=dict(container_options or {})) as output:
        stream = output.add_stream(codec, rate=rate, options=dict(options or {}))
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, pixel_format
        stream.thread_count = 1
        if pts_ms is not None:
            stream.time_base = stream.codec_context.time_base = Fraction(1, 1000)
        for index in range(num_frames):
            frame = VideoFrame.from_ndarray(picture(index, width, height), format="rgb24")
            if pts_ms is not None:
                frame.pts, frame.time_base = pts_ms[index], Fraction(1, 1000)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return buffer.getvalue()


def turned(mp4: bytes, matrix: Sequence[int]) -> bytes:
    """The same MP4 with another display matrix in its track header (version 0)."""
    start = mp4.index(b"tkhd") + 44
    return mp4[:start] + struct.pack(">9i", *matrix) + mp4[start + 36 :]


QUARTER_CLOCKWISE = (0, 0x10000, 0, -0x10000, 0, 0, 0, 0, 0x40000000)
HALF = (-0x10000, 0, 0, 0, -0x10000, 0, 0, 0, 0x40000000)
QUARTER_COUNTERCLOCKWISE = (0, -0x10000, 0, 0x10000, 0, 0, 0, 0, 0x40000000)


def packet_ranges(data: bytes) -> list[tuple[int, int]]:
    """Byte offset and size of every packet."""
    with av.open(io.BytesIO(data), "r") as container:
        return [(packet.pos or 0, packet.size) for packet in container.demux() if packet.size]


def with_packets_filled(data: bytes, numbers: Sequence[int], fill: int) -> bytes:
    damaged = bytearray(data)
    ranges = packet_ranges(data)
    for number in numbers:
        offset, size = ranges[number]
        damaged[offset : offset + size] = bytes([fill]) * size
    return bytes(damaged)
