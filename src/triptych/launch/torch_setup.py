"""What every process that computes with torch does first."""

from __future__ import annotations

import torch

from triptych.config import ModelConfig
from triptych.models import torchvision_cpu


def prepare_torch(model: ModelConfig) -> None:
    torchvision_cpu.install()
    torch.set_num_threads(model.num_threads)


def torch_dtype(model: ModelConfig) -> torch.dtype:
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[model.dtype]
