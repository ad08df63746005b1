from __future__ import annotations

import numpy as np
import pytest
import torch

from triptych.errors import EmbeddingUnavailable
from triptych.messages import TensorRef
from triptych.transport.tensors import copy_in, copy_out, dtype_name, fits, tensor_bytes


def reference(dtype: str, shape: tuple[int, ...]) -> TensorRef:
    return TensorRef(
        key="key",
        namespace="ns",
        dtype=dtype,
        shape=shape,
        size_bytes=0,
        transport="inproc",
        address="",
        lease_id="",
        incarnation="",
        generation=1,
    )


def test_strided_tensor_is_copied_in_logical_order() -> None:
    tensor = torch.arange(12, dtype=torch.int32).reshape(3, 4).t()
    memory = np.zeros(tensor_bytes(tensor.dtype, tuple(tensor.shape)), np.uint8)

    copy_in(memory, tensor)

    assert torch.equal(copy_out(memory, reference("int32", (4, 3))), tensor)


def test_tensor_that_requires_grad_is_copied_without_its_graph() -> None:
    tensor = torch.ones(2, 2, requires_grad=True)
    memory = np.zeros(16, np.uint8)

    copy_in(memory, tensor)

    assert not copy_out(memory, reference("float32", (2, 2))).requires_grad


def test_read_only_memory_is_copied_out_without_a_warning() -> None:
    memory = np.frombuffer(bytes(8), np.uint8)

    copy_out(memory, reference("bfloat16", (2, 2))).fill_(1)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.quint8], ids=str)
def test_dtype_that_no_transport_carries_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="cannot be moved"):
        dtype_name(dtype)


@pytest.mark.parametrize(
    "wrong", [reference("float16", (2, 2)), reference("void", (2, 2))], ids=["size", "name"]
)
def test_reference_of_another_size_or_dtype_is_unavailable(wrong: TensorRef) -> None:
    with pytest.raises(EmbeddingUnavailable):
        copy_out(np.zeros(16, np.uint8), wrong)


def test_tensor_fits_a_reference_of_its_dtype_and_shape_only() -> None:
    ref = reference("float32", (2, 3))

    assert fits(ref, torch.zeros(2, 3))
    assert not fits(ref, torch.zeros(3, 2))
    assert not fits(ref, torch.zeros(2, 3, dtype=torch.int32))
