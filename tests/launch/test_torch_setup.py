"""What every process that computes does first."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import get_args

import pytest
import torch

from triptych.cli import DType
from triptych.config import ModelConfig
from triptych.launch.torch_setup import prepare_torch, torch_dtype

MODEL = ModelConfig(path=Path(), served_name="m")


@pytest.mark.usefixtures("own_threads")
def test_forward_passes_use_as_many_threads_as_configured() -> None:
    prepare_torch(ModelConfig(path=Path(), served_name="m", num_threads=3))
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("own_threads")
def test_torchvision_can_be_imported() -> None:
    prepare_torch(MODEL)
    assert importlib.util.find_spec("torchvision.transforms.v2") is not None


@pytest.mark.parametrize("name", get_args(DType))
def test_every_dtype_of_the_config_is_one_of_torch(name: DType) -> None:
    model = ModelConfig(path=Path(), served_name="m", dtype=name)
    assert torch_dtype(model) is getattr(torch, name)
