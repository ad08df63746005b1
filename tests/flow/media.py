"""Lossless media for end-to-end tests, as arrays (for the reference) and as data URLs (for the server)."""

from __future__ import annotations

import base64
import io
import wave
from dataclasses import dataclass

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

RATE_HZ = 16_000
VIDEO_FPS = 8


@dataclass(frozen=True)
class Picture:
    url: str
    pixels: NDArray[np.uint8]


@dataclass(frozen=True)
class Sound:
    url: str
    samples: NDArray[np.float32]


@dataclass(frozen=True)
class Film:
    url: str
    frames: NDArray[np.uint8]
    """Every frame, decoded back from the file."""


def picture(seed: int, width: int = 200, height: int = 120) -> Picture:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return Picture(data_url("image/png", buffer.getvalue()), pixels)


def sound(seed: int, seconds: float = 1.2) -> Sound:
    noise = np.random.default_rng(seed).normal(0, 0.1, int(RATE_HZ * seconds))
    integers = (noise.clip(-1, 1) * 32_767).astype("<i2")
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE_HZ)
        file.writeframes(integers.tobytes())
    return Sound(data_url("audio/wav", buffer.getvalue()), integers.astype(np.float32) / np.float32(32_768))


def film(seed: int, num_frames: int = 12, width: int = 128, height: int = 96) -> Film:
    rng = np.random.default_rng(seed)
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=VIDEO_FPS)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for _ in range(num_frames):
            small = rng.integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8)
            image = Image.fromarray(small).resize((width, height), Image.Resampling.NEAREST)
            container.mux(stream.encode(av.VideoFrame.from_image(image)))
        container.mux(stream.encode(None))
    return Film(data_url("video/mp4", buffer.getvalue()), _all_frames(buffer.getvalue()))


def _all_frames(data: bytes) -> NDArray[np.uint8]:
    with av.open(io.BytesIO(data), "r") as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return np.stack(frames).astype(np.uint8)


def data_url(mime: str, data: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"
