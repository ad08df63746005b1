from __future__ import annotations

import resource

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.media.make_image import (
    encoded,
    gradient,
    noise_jpeg,
    one_bit_png_of_zeros,
    png,
    solid_png,
    with_orientation,
)
from triptych.config import DecodeConfig
from triptych.errors import MediaInvalid, MediaLimitExceeded
from triptych.media.image import decode_image

CONFIG = DecodeConfig()


def pixels_of(data: bytes, config: DecodeConfig = CONFIG) -> NDArray[np.uint8]:
    return decode_image(data, config).pixels


def assert_close(actual: NDArray[np.uint8], expected: list[int], tolerance: int) -> None:
    np.testing.assert_allclose(actual.astype(int), expected, atol=tolerance)


def test_jpeg_with_orientation_6_is_turned_upright() -> None:
    pixels = pixels_of(with_orientation(gradient(), 6))
    assert pixels.shape == (24, 16, 3)
    assert_close(pixels[0, 0], [0, 225, 90], 3)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("file_format", ["PNG", "WEBP", "TIFF", "AVIF"])
def test_every_orientation_in_every_format_gives_the_same_upright_image(
    file_format: str, orientation: int
) -> None:
    back = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    upright = Image.new("RGB", (48, 32), (0, 0, 200))
    upright.paste((250, 250, 250), (0, 0, 24, 16))
    upright.paste((200, 0, 0), (24, 16, 48, 32))
    stored = upright.transpose(back[orientation]) if orientation > 1 else upright
    pixels = pixels_of(with_orientation(stored, orientation, file_format))
    assert pixels.shape == (32, 48, 3)
    for y, x in ((8, 12), (24, 12), (8, 36), (24, 36)):
        assert_close(pixels[y, x], list(np.asarray(upright)[y, x]), 6)


def test_tagged_image_has_the_size_of_its_upright_twin() -> None:
    upright = gradient(100, 200)
    stored = upright.transpose(Image.Transpose.ROTATE_90)
    assert stored.size == (200, 100)
    assert pixels_of(with_orientation(stored, 6)).shape == (200, 100, 3)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_exif_leaves_the_image_as_it_is() -> None:
    data = encoded(gradient(), "JPEG", exif=b"Exif\0\0MM\0*\0\0\xff\xff\xff\xff")
    assert pixels_of(data).shape == (16, 24, 3)


def test_alpha_is_laid_on_white() -> None:
    image = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    image.putpixel((0, 0), (255, 0, 0, 255))
    image.putpixel((1, 0), (255, 0, 0, 128))
    pixels = pixels_of(png(image))
    assert pixels[0, 0].tolist() == [255, 0, 0]
    assert_close(pixels[0, 1], [255, 127, 127], 1)
    assert pixels[3, 3].tolist() == [255, 255, 255]


def test_alpha_is_laid_on_the_configured_background() -> None:
    image = Image.new("RGBA", (2, 2), (255, 255, 255, 0))
    config = DecodeConfig(alpha_background=(10, 20, 30))
    assert pixels_of(png(image), config)[0, 0].tolist() == [10, 20, 30]


def test_grey_with_alpha_is_laid_on_white() -> None:
    assert pixels_of(png(Image.new("LA", (2, 2), (0, 0))))[0, 0].tolist() == [255, 255, 255]


def test_palette_with_alpha_is_laid_on_white() -> None:
    image = Image.new("RGBA", (2, 2), (0, 0, 0, 0))
    image.putpixel((0, 0), (255, 0, 0, 255))
    palette_image = image.quantize(4)
    pixels = pixels_of(png(palette_image))
    assert pixels[0, 0].tolist() == [255, 0, 0]
    assert pixels[1, 1].tolist() == [255, 255, 255]


def test_transparent_palette_index_is_white() -> None:
    image = Image.new("P", (4, 4))
    image.putpalette([255, 0, 0, 0, 0, 0])
    image.putpixel((1, 0), 1)
    pixels = pixels_of(png(image, transparency=1))
    assert pixels[0, 0].tolist() == [255, 0, 0]
    assert pixels[0, 1].tolist() == [255, 255, 255]


def test_transparent_color_key_is_white() -> None:
    image = Image.new("RGB", (2, 1), (0, 0, 0))
    image.putpixel((0, 0), (9, 8, 7))
    pixels = pixels_of(png(image, transparency=(0, 0, 0)))
    assert pixels[0].tolist() == [[9, 8, 7], [255, 255, 255]]


def test_transparent_grey_key_is_white() -> None:
    image = Image.new("L", (2, 1), 0)
    image.putpixel((0, 0), 90)
    assert pixels_of(png(image, transparency=0))[0].tolist() == [[90, 90, 90], [255, 255, 255]]


def test_color_key_survives_orientation() -> None:
    image = Image.new("RGB", (2, 1), (0, 0, 0))
    exif = Image.Exif()
    exif[0x112] = 6
    assert pixels_of(png(image, transparency=(0, 0, 0), exif=exif)).min() == 255


def test_sixteen_bit_grey_keeps_256_levels() -> None:
    ramp = (np.arange(256, dtype=np.uint16) * 257).reshape(1, 256)
    grey = pixels_of(png(Image.fromarray(ramp)))[0, :, 0]
    assert len(np.unique(grey)) == 256
    np.testing.assert_allclose(grey.astype(int), ramp[0] >> 8, atol=1)


def test_sixteen_bit_color_key_is_white() -> None:
    data = png(Image.fromarray(np.array([[0, 40000]], dtype=np.uint16)), transparency=0)
    assert pixels_of(data)[0, :, 0].tolist() == [255, 40000 >> 8]


@pytest.mark.parametrize(("ink", "color"), [((0, 255, 255, 0), [255, 0, 0]), ((0, 0, 0, 255), [0, 0, 0])])
def test_cmyk_jpeg_is_not_inverted(ink: tuple[int, int, int, int], color: list[int]) -> None:
    pixels = pixels_of(encoded(Image.new("CMYK", (16, 16), ink), "JPEG", quality=95))
    assert_close(pixels[8, 8], color, 3)


def test_grey_jpeg_gets_three_channels() -> None:
    pixels = pixels_of(encoded(Image.new("L", (8, 8), 90), "JPEG", quality=95))
    assert pixels.shape == (8, 8, 3)
    assert_close(pixels[4, 4], [90, 90, 90], 1)


def test_one_bit_png_is_black_and_white() -> None:
    image = Image.new("1", (2, 1), 0)
    image.putpixel((1, 0), 1)
    assert pixels_of(png(image))[0].tolist() == [[0, 0, 0], [255, 255, 255]]


def test_animation_gives_its_first_frame() -> None:
    red, green, blue = (Image.new("RGB", (8, 8), color) for color in ("red", "green", "blue"))
    data = encoded(red, "GIF", save_all=True, append_images=[green, blue])
    assert pixels_of(data)[4, 4].tolist() == [255, 0, 0]
    np.testing.assert_array_equal(pixels_of(data), pixels_of(data))


def test_truncated_jpeg_is_refused() -> None:
    with pytest.raises(MediaInvalid, match="truncated"):
        pixels_of(noise_jpeg()[:-128])


def test_truncated_png_is_refused() -> None:
    with pytest.raises(MediaInvalid, match="failed to load"):
        pixels_of(png(gradient(200, 200))[:-60])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not an image",
        b"\x89PNG\r\n\x1a\n" + bytes(10),
        b"<!doctype html><html></html>",
        b'{"error": "gone"}',
    ],
)
def test_bytes_that_are_no_image_are_refused_without_echo(data: bytes) -> None:
    with pytest.raises(MediaInvalid, match="failed to load") as caught:
        pixels_of(data)
    assert "doctype" not in str(caught.value)
    assert "gone" not in str(caught.value)


def test_postscript_is_not_an_accepted_format() -> None:
    with pytest.raises(MediaInvalid, match="cannot identify"):
        pixels_of(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n")


def test_pixel_bomb_is_refused_from_its_header() -> None:
    bomb = one_bit_png_of_zeros(20_000)
    assert len(bomb) < 60_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(MediaLimitExceeded, match="pixels exceed"):
        pixels_of(bomb)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024


def test_image_above_the_decoded_bytes_limit_is_refused() -> None:
    with pytest.raises(MediaLimitExceeded, match="exceed"):
        pixels_of(solid_png((0, 0, 0), 100, 100), DecodeConfig(max_decoded_bytes=30_000))


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 64), (64, 1)])
def test_tiny_images_decode(width: int, height: int) -> None:
    pixels = pixels_of(solid_png((9, 9, 9), width, height))
    assert pixels.shape == (height, width, 3)
    assert (pixels == 9).all()


def test_pixels_are_writable_and_contiguous() -> None:
    pixels = pixels_of(solid_png((1, 2, 3)))
    assert pixels.flags.writeable
    assert pixels.flags.c_contiguous


def test_floating_point_image_is_refused_by_name() -> None:
    with pytest.raises(MediaInvalid, match="floating-point"):
        pixels_of(encoded(Image.new("F", (4, 4), 0.5), "TIFF"))
