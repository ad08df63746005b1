"""What every process that computes with torch does first."""

from __future__ import annotations

import torch

from triptych.config import ModelConfig
from triptych.errors import ConfigError


def prepare_torch(model: ModelConfig) -> None:
    """Raises ConfigError if the device is not there."""
    try:
        torch.empty(0, device=model.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {model.device} cannot be used: {reason}") from error
    torch.set_num_threads(model.num_threads)


def torch_dtype(model: ModelConfig) -> torch.dtype:
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[model.dtype]
