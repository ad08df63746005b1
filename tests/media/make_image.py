"""Image files made on the spot."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import ExifTags, Image


def encoded(image: Image.Image, file_format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def gradient(width: int = 24, height: int = 16) -> Image.Image:
    """Pixel (x, y) is [10 x, 15 y, 6 (x + y)], modulo 256."""
    y, x = np.mgrid[0:height, 0:width]
    return Image.fromarray(np.stack([10 * x, 15 * y, 6 * (x + y)], axis=-1).astype(np.uint8))


def with_orientation(image: Image.Image, orientation: int, file_format: str = "JPEG") -> bytes:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    if file_format == "JPEG":
        return encoded(image, "JPEG", exif=exif, quality=95, subsampling=0)
    return encoded(image, file_format, exif=exif)


def png(image: Image.Image, **options: object) -> bytes:
    return encoded(image, "PNG", **options)


def solid_png(color: tuple[int, int, int], width: int = 8, height: int = 8) -> bytes:
    return png(Image.new("RGB", (width, height), color))


def noise_jpeg(size: int = 128) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)
    return encoded(Image.fromarray(pixels), "JPEG", quality=90)


def one_bit_png_of_zeros(side: int) -> bytes:
    """A PNG of side x side pixels that compresses to almost nothing."""
    rows = (b"\0" + bytes((side + 7) // 8)) * side
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", zlib.compress(rows, 9))
        + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
