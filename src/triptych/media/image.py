"""Image bytes → upright RGB pixels, whatever the file's mode."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from triptych.config import DecodeConfig
from triptych.errors import MediaInvalid, MediaLimitExceeded
from triptych.media.types import DecodedImage

# Pillow's own pixel limit warns through a process-wide filter and cannot be set per call. `_check_size`
# replaces it: every format below states its size in the header.
Image.MAX_IMAGE_PIXELS = None

_FORMATS: Final = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
"""Formats with one size, decoded in this process (EPS would start another program). JPEG includes MPO."""

_DAMAGE: Final = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
    struct.error,
    zlib.error,
)
"""What Pillow's parsers let out on damaged files."""

_SIXTEEN_BIT: Final = ("I;16", "I;16L", "I;16B", "I;16N", "I")
_BYTES_PER_PIXEL: Final = 4

_UPRIGHT: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation → what makes the image upright."""


def decode_image(data: bytes, config: DecodeConfig) -> DecodedImage:
    """Decode the first frame of an image, recognised by its bytes.

    Transparency of every kind (alpha channel, palette, colour key) is laid on `config.alpha_background`;
    16-bit samples keep their high byte; EXIF orientation is applied.

    Raises:
        MediaInvalid: not an image of an accepted format, damaged or cut short.
        MediaLimitExceeded: its header announces too many pixels; nothing was allocated for them.
    """
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            _check_size(image.size, config)
            image.load()
            _check_size(image.size, config)
            upright = _upright(image)
            return DecodedImage(np.array(_rgb(upright, config.alpha_background), dtype=np.uint8))
    except UnidentifiedImageError as error:
        raise MediaInvalid("failed to load the image: cannot identify its format") from error
    except _DAMAGE as error:
        raise MediaInvalid("failed to load the image: it is damaged or truncated") from error


def _check_size(size: tuple[int, int], config: DecodeConfig) -> None:
    num_pixels = size[0] * size[1]
    limit = min(config.max_image_pixels, config.max_decoded_bytes // _BYTES_PER_PIXEL)
    if num_pixels > limit:
        raise MediaLimitExceeded(f"the image's {num_pixels} pixels exceed the maximum of {limit}")


def _upright(image: Image.Image) -> Image.Image:
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except _DAMAGE:
        return image  # damaged EXIF says nothing about the pixels
    method = _UPRIGHT.get(orientation) if isinstance(orientation, int) else None
    if method is None:
        return image
    upright = image.transpose(method)
    upright.info = image.info  # keeps the colour key
    return upright


def _rgb(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    if image.mode in _SIXTEEN_BIT:
        return _rgb_from_sixteen_bit(image, background)
    if image.mode == "F":
        raise MediaInvalid("images of floating-point samples have no defined brightness and are not accepted")
    if not image.has_transparency_data:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    flat = Image.new("RGB", layer.size, background)
    flat.paste(layer, mask=layer.getchannel("A"))
    return flat


def _rgb_from_sixteen_bit(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    """Grey samples 0 to 65535. `Image.convert` would clip them at 255 instead of scaling."""
    samples: NDArray[np.integer] = np.asarray(image)
    grey = (np.clip(samples, 0, 65535) >> 8).astype(np.uint8)
    flat = Image.fromarray(grey).convert("RGB")
    key = image.info.get("transparency")
    if isinstance(key, int):
        flat.paste(background, mask=Image.fromarray(samples == key))
    return flat
