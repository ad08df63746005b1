"""Tensors to move, and ways to compare them."""

from __future__ import annotations

import torch

from tests.transport.peers import Peer
from triptych.messages import TensorRef


def random_tensor(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Any bits, except that a bool is 0 or 1."""
    num_bytes = dtype.itemsize * torch.Size(shape).numel()
    data = torch.randint(0, 2 if dtype is torch.bool else 256, (num_bytes,), dtype=torch.uint8)
    return data.view(dtype).reshape(shape)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Also where NaN is."""
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and torch.equal(left.reshape(-1).view(torch.uint8), right.reshape(-1).view(torch.uint8))
    )


def published(peer: Peer, tensor: torch.Tensor, note: bytes = b"") -> TensorRef:
    ref = peer.reserve(tensor.dtype, tuple(tensor.shape))
    peer.publish(ref, tensor, note)
    return ref
