"""Which tensor lies in which safetensors file of a checkpoint, read from the index or from file headers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from triptych.errors import CheckpointError

INDEX_NAME = "model.safetensors.index.json"


class LazyTensor(Protocol):
    """A tensor on disk; `tensor[...]` reads it."""

    def get_shape(self) -> list[int]: ...


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """`file_of[key]` is the name of the file in `directory` that holds the tensor `key`."""

    directory: Path
    file_of: Mapping[str, str]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.file_of.values())

    def open(self, keys: Iterable[str], stack: ExitStack) -> dict[str, LazyTensor]:
        """The tensors of `keys`, not read yet; files that hold none stay closed, others close with `stack`.

        Raises:
            CheckpointError: a file is missing, damaged, or does not hold what the index says.
        """
        by_file: dict[str, list[str]] = {}
        for key in keys:
            by_file.setdefault(self.file_of[key], []).append(key)
        found: dict[str, LazyTensor] = {}
        for name, names in by_file.items():
            try:
                file = stack.enter_context(safe_open(self.directory / name, framework="pt", device="cpu"))
                found.update({key: cast(LazyTensor, file.get_slice(key)) for key in names})
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"cannot read {self.directory / name}: {error}") from error
        return found


def find_weights(directory: Path) -> WeightFiles:
    """Read the index; without one, the header of every safetensors file.

    Raises:
        CheckpointError: no weights, or an index that cannot be read.
    """
    index = directory / INDEX_NAME
    if index.is_file():
        try:
            return WeightFiles(directory, msgspec.json.decode(index.read_bytes(), type=_Index).weight_map)
        except (OSError, msgspec.MsgspecError) as error:
            raise CheckpointError(f"cannot read {index}: {error}") from error
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{directory} holds no safetensors weights")
    return WeightFiles(directory, {key: path.name for path in files for key in _keys(path)})


def _keys(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return list(file.keys())
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error


def tensor_bytes(tensors: Mapping[str, LazyTensor], dtype: torch.dtype) -> int:
    """Size of `tensors` held in `dtype`."""
    return sum(torch.Size(tensor.get_shape()).numel() for tensor in tensors.values()) * dtype.itemsize
