"""Items → the arguments of one encoder call, and its output → rows of each item."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import pad

from triptych.errors import InternalError
from triptych.models.interface import ProcessedItem

Rows = torch.Tensor | Sequence[torch.Tensor]
"""[rows, hidden] of all items, [patches, rows a patch, hidden], or one [rows, hidden] an item."""


def merge_inputs(items: Sequence[ProcessedItem]) -> dict[str, torch.Tensor]:
    """Concatenate along the first axis; what differs in other axes is padded with zeros behind."""
    if len(items) == 1:
        return dict(items[0].inputs)
    return {name: _concatenate([item.inputs[name] for item in items]) for name in items[0].inputs}


def _concatenate(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    longest = [max(sizes) for sizes in zip(*(tensor.shape[1:] for tensor in tensors), strict=True)]
    padded: list[torch.Tensor] = []
    for tensor in tensors:
        missing = [size - have for size, have in zip(longest, tensor.shape[1:], strict=True)]
        amounts = [amount for axis in reversed(missing) for amount in (0, axis)]
        padded.append(pad(tensor, amounts) if any(amounts) else tensor)
    return torch.cat(padded)


def split_by_audio_padding(
    items: Sequence[tuple[int, ProcessedItem]], chunk_length: int | None
) -> list[list[tuple[int, ProcessedItem]]]:
    """Groups that may share a call: clips shorter than one chunk only with clips of the same length.

    The audio towers pad the chunks of a call to the longest before they convolve, and what the biases make of
    the padding reaches into the last frames. A clip of at least one chunk is padded the same alone or in
    company; a shorter one is not.
    """
    groups: dict[int, list[tuple[int, ProcessedItem]]] = {}
    for index, item in items:
        mask = item.inputs.get("feature_attention_mask")
        length = 0 if mask is None or chunk_length is None else min(int(mask.sum()), chunk_length)
        groups.setdefault(length, []).append((index, item))
    return list(groups.values())


def split_rows(layers: Sequence[Rows], counts: Sequence[int], dtype: torch.dtype) -> list[torch.Tensor]:
    """[count, hidden × layers] of each item on the CPU, layers side by side, in memory of its own.

    Raises:
        InternalError: the encoder yielded another number of rows than the items have tokens.
    """
    flat = [_flatten(layer) for layer in layers]
    if any(layer.shape[0] != sum(counts) for layer in flat):
        raise InternalError(f"{flat[0].shape[0]} rows came out where {sum(counts)} were expected")
    packed = flat[0] if len(flat) == 1 else torch.cat(flat, dim=-1)
    packed = packed.to("cpu", dtype)
    if len(counts) == 1:
        return [packed.contiguous()]
    return [rows.clone(memory_format=torch.contiguous_format) for rows in packed.split(list(counts))]


def _flatten(rows: Rows) -> torch.Tensor:
    if not isinstance(rows, torch.Tensor):
        return rows[0] if len(rows) == 1 else torch.cat(list(rows))
    return rows.flatten(0, -2)
