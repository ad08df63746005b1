"""Photo-like JPEGs made on the spot, each different, the same for the same number everywhere."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image


def photo_url(number: int, width: int = 640, height: int = 360) -> str:
    """A JPEG (quality 90) of smooth gradients, blobs and noise, as a data URL."""
    rng = np.random.default_rng(number)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    pixels = np.empty((height, width, 3), np.float32)
    for channel in range(3):
        a, b, phase = rng.uniform(-3, 3), rng.uniform(-3, 3), rng.uniform(0, 6)
        pixels[..., channel] = 128 + 90 * np.sin(a * x / width + b * y / height + phase)
    for _ in range(12):
        center_x, center_y, radius = rng.uniform(0, width), rng.uniform(0, height), rng.uniform(8, width / 6)
        inside = (x - center_x) ** 2 + (y - center_y) ** 2 < radius**2
        pixels[inside] = pixels[inside] * 0.5 + rng.uniform(0, 128, 3)
    pixels += rng.normal(0, 6, pixels.shape)
    buffer = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
