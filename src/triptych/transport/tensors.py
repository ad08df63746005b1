"""Tensors as bytes: names of dtypes on the wire, sizes, and copies in and out of a slab."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from triptych.errors import EmbeddingUnavailable
from triptych.messages import TensorRef

Bytes = NDArray[np.uint8]

_DTYPES: Final[Mapping[str, torch.dtype]] = MappingProxyType(
    {
        str(dtype).removeprefix("torch."): dtype
        for dtype in (
            torch.float64,
            torch.float32,
            torch.float16,
            torch.bfloat16,
            torch.float8_e4m3fn,
            torch.float8_e5m2,
            torch.int64,
            torch.int32,
            torch.int16,
            torch.int8,
            torch.uint8,
            torch.bool,
        )
    }
)


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype on the wire, e.g. "bfloat16".

    Raises:
        ValueError: a dtype that no transport carries (complex, quantised).
    """
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise ValueError(f"tensors of dtype {name} cannot be moved")
    return name


def tensor_bytes(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    """Size of a contiguous tensor in bytes."""
    return dtype.itemsize * math.prod(shape)


def fits(ref: TensorRef, tensor: torch.Tensor) -> bool:
    """Whether the tensor is what the reference announced."""
    return dtype_name(tensor.dtype) == ref.dtype and tuple(tensor.shape) == ref.shape


def copy_in(memory: Bytes, tensor: torch.Tensor) -> None:
    """Write a tensor (any device, any strides) to `memory`, which has exactly its size."""
    np.copyto(memory, _as_bytes(tensor.detach().cpu().contiguous()))


def copy_out(memory: Bytes, ref: TensorRef) -> torch.Tensor:
    """A new CPU tensor, contiguous, with the bytes of `memory`.

    Raises:
        EmbeddingUnavailable: the reference names an unknown dtype or another size than what is stored.
    """
    dtype = _DTYPES.get(ref.dtype)
    if dtype is None or tensor_bytes(dtype, ref.shape) != memory.nbytes:
        raise EmbeddingUnavailable(
            f"{ref.key}: {memory.nbytes} stored bytes are no {ref.dtype} tensor of shape {list(ref.shape)}"
        )
    tensor = torch.empty(ref.shape, dtype=dtype)
    np.copyto(_as_bytes(tensor), memory)
    return tensor


def _as_bytes(tensor: torch.Tensor) -> Bytes:
    # numpy's copy: torch warns about read-only buffers, and knows no bfloat16 ↔ numpy.
    array: Bytes = tensor.reshape(-1).view(torch.uint8).numpy()
    return array
