"""The demo's image, sound and video, made on the spot: nothing is downloaded."""

from __future__ import annotations

import base64
import io
import wave
from collections.abc import Iterator

import av
import numpy as np
from PIL import Image, ImageDraw


def red_circle() -> str:
    """A PNG, 320×240, as a data URL."""
    image = Image.new("RGB", (320, 240), (235, 235, 225))
    ImageDraw.Draw(image).ellipse((110, 60, 230, 180), fill=(220, 30, 30))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return _data_url("image/png", buffer.getvalue())


def rising_tone() -> str:
    """A WAV, one second at 16 kHz, as a data URL."""
    seconds = np.arange(16_000) / 16_000
    samples = 0.5 * np.sin(2 * np.pi * (400 * seconds + 400 * seconds**2))
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes((samples * 32_767).astype("<i2").tobytes())
    return _data_url("audio/wav", buffer.getvalue())


def square_moving_right() -> str:
    """An H.264 MP4, 2 seconds at 8 frames a second, 320×240, as a data URL."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=8)
        stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p"
        for image in _frames():
            container.mux(stream.encode(av.VideoFrame.from_image(image)))
        container.mux(stream.encode(None))
    return _data_url("video/mp4", buffer.getvalue())


def _frames() -> Iterator[Image.Image]:
    for index in range(16):
        image = Image.new("RGB", (320, 240), (20, 20, 30))
        left = 10 + index * 15
        ImageDraw.Draw(image).rectangle((left, 90, left + 60, 150), fill=(40, 90, 230))
        yield image


def _data_url(mime: str, data: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"
