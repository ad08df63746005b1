"""A projection of patches equals the convolution that it replaces."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.tiny_models import FAMILIES, tiny_checkpoint
from triptych.models.checkpoint import load_part
from triptych.models.patches import PatchProjection, install


@pytest.mark.parametrize("size", [(2, 14, 14), (4, 28, 42)])
@pytest.mark.parametrize("bias", [True, False])
def test_equals_a_convolution_over_time(size: tuple[int, int, int], bias: bool) -> None:
    convolution = nn.Conv3d(3, 8, kernel_size=(2, 14, 14), stride=(2, 14, 14), bias=bias)
    pixels = torch.randn(5, 3, *size)
    got = PatchProjection(convolution)(pixels)
    torch.testing.assert_close(got, convolution(pixels), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [(14, 14), (56, 28), (60, 31)])
def test_equals_a_convolution_over_an_image(size: tuple[int, int]) -> None:
    convolution = nn.Conv2d(3, 8, kernel_size=14, stride=14)
    pixels = torch.randn(2, 3, *size)
    got = PatchProjection(convolution)(pixels)
    torch.testing.assert_close(got, convolution(pixels), atol=1e-5, rtol=1e-5)


def test_other_convolutions_are_left_alone() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, kernel_size=3, stride=2, padding=1),
        nn.Conv2d(4, 4, kernel_size=2, stride=2, padding=1),
        nn.Conv2d(4, 4, kernel_size=1),
        nn.Conv2d(4, 4, kernel_size=2, stride=2, groups=2),
    )
    assert install(model) == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_patch_embedding_is_found(tmp_path: Path, family: str) -> None:
    model, _ = load_part(tiny_checkpoint(family, tmp_path), "encoder", torch.float32, "cpu")
    names = set(model.state_dict())
    assert install(model) == 1
    assert set(model.state_dict()) == names
