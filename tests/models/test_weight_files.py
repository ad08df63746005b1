"""Tensors are found by index or header, and read only when used."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from triptych.errors import CheckpointError
from triptych.models.weight_files import INDEX_NAME, find_weights, tensor_bytes


def _two_files(directory: Path) -> None:
    save_file({"a": torch.zeros(2, 3)}, directory / "one.safetensors")
    save_file({"b": torch.ones(4)}, directory / "two.safetensors")


def test_headers_stand_in_for_a_missing_index(tmp_path: Path) -> None:
    _two_files(tmp_path)
    assert find_weights(tmp_path).file_of == {"a": "one.safetensors", "b": "two.safetensors"}


def test_only_files_that_hold_a_wanted_key_are_opened(tmp_path: Path) -> None:
    _two_files(tmp_path)
    files = find_weights(tmp_path)
    (tmp_path / "one.safetensors").unlink()
    with ExitStack() as stack:
        tensors = files.open(["b"], stack)
        assert tensors["b"].get_shape() == [4]
        assert tensor_bytes(tensors, torch.bfloat16) == 8
        with pytest.raises(CheckpointError, match=r"one\.safetensors"):
            files.open(["a"], stack)


def test_index_that_names_an_absent_tensor_is_refused(tmp_path: Path) -> None:
    _two_files(tmp_path)
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": {"c": "one.safetensors"}}))
    with ExitStack() as stack, pytest.raises(CheckpointError):
        find_weights(tmp_path).open(["c"], stack)


@pytest.mark.parametrize("text", ["{", '{"weight_map": 3}', "{}"])
def test_broken_index_is_refused(tmp_path: Path, text: str) -> None:
    _two_files(tmp_path)
    (tmp_path / INDEX_NAME).write_text(text)
    with pytest.raises(CheckpointError, match="index"):
        find_weights(tmp_path)


def test_file_that_is_no_safetensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.safetensors").write_bytes(b"not weights")
    with pytest.raises(CheckpointError, match=r"one\.safetensors"):
        find_weights(tmp_path)
