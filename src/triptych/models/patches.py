"""Patch embedding as one matrix product: a convolution with stride = kernel looks at each patch alone."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import linear

_Convolution = nn.Conv2d | nn.Conv3d


class PatchProjection(nn.Module):
    """The same linear map as `convolution`, with its weights, for inputs that the kernel tiles."""

    def __init__(self, convolution: _Convolution) -> None:
        super().__init__()
        self.kernel = tuple(int(size) for size in convolution.kernel_size)
        self.weight, self.bias = convolution.weight, convolution.bias

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """[n, channels, *sizes] → [n, out_channels, *(sizes / kernel)]."""
        grid = [size // kernel for size, kernel in zip(pixels.shape[2:], self.kernel, strict=True)]
        covered = [count * kernel for count, kernel in zip(grid, self.kernel, strict=True)]
        for axis, size in enumerate(covered):
            pixels = pixels.narrow(axis + 2, 0, size)
        rows = _tile(pixels, grid, self.kernel)
        out = linear(rows, self.weight.flatten(1), self.bias)
        return out.unflatten(0, (pixels.shape[0], *grid)).movedim(-1, 1)


def _tile(pixels: torch.Tensor, grid: list[int], kernel: tuple[int, ...]) -> torch.Tensor:
    """[n, channels, *sizes] → [n × patches, channels × kernel]; a view where each input is one patch."""
    if all(count == 1 for count in grid):
        return pixels.flatten(1)
    split = [size for pair in zip(grid, kernel, strict=True) for size in pair]
    tiled = pixels.reshape(*pixels.shape[:2], *split)  # n, channels, grid 0, kernel 0, grid 1, kernel 1, …
    outer = [2 + 2 * axis for axis in range(len(kernel))]
    inner = [axis + 1 for axis in outer]
    return tiled.permute(0, *outer, 1, *inner).reshape(-1, pixels.shape[1] * torch.Size(kernel).numel())


def install(model: nn.Module) -> int:
    """Replace every such convolution of `model`; says how many there were."""
    found = [(name, module) for name, module in model.named_modules() if _is_patch_embedding(module)]
    for name, module in found:
        assert isinstance(module, _Convolution)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, PatchProjection(module))
    return len(found)


def _is_patch_embedding(module: nn.Module) -> bool:
    return (
        isinstance(module, _Convolution)
        and module.stride == module.kernel_size
        and torch.Size(module.kernel_size).numel() > 1
        and module.groups == 1
        and all(step == 1 for step in module.dilation)
        and (module.padding == "valid" or (not isinstance(module.padding, str) and not any(module.padding)))
    )
