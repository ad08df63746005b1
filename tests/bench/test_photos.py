"""Pictures that no cache has seen, and that are the same everywhere."""

from __future__ import annotations

import base64
import io

from PIL import Image

from triptych.bench.photos import photo_url


def opened(url: str) -> Image.Image:
    head, _, data = url.partition(",")
    assert head == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(data)))


def test_the_same_number_is_the_same_picture() -> None:
    assert photo_url(7, 64, 48) == photo_url(7, 64, 48)


def test_different_numbers_are_different_pictures() -> None:
    assert len({photo_url(number, 64, 48) for number in range(20)}) == 20


def test_a_picture_has_the_size_asked_for_and_the_weight_of_a_photo() -> None:
    url = photo_url(1)
    with opened(url) as image:
        assert (image.size, image.mode, image.format) == ((640, 360), "RGB", "JPEG")
    assert 20_000 < len(url) < 400_000
