"""Rotary positions of a prompt from ids and metadata, by the model's own code."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from transformers import PreTrainedModel

from triptych.errors import InvalidHandle
from triptych.messages import Metadata, Modality
from triptych.models.interface import Positions
from triptych.models.placeholders import metadata_arrays

Item = tuple[Modality, Metadata, tuple[tuple[int, int], ...]]
_TOKEN_TYPES: dict[Modality, int] = {"image": 1, "video": 2, "audio": 3}
"""As `ProcessorMixin.create_mm_token_type_ids` of Transformers 5.24 numbers them; 0 is text.
tests/models/test_language.py pins them."""


class PromptPositions:
    """Asks one model for positions. Thread-safe: the model writes the offset on itself, so one at a time."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._prepare = cast(
            Callable[[torch.Tensor, dict[str, torch.Tensor]], torch.Tensor],
            model._prepare_position_ids_for_generation,
        )
        self._lock = threading.Lock()

    def __call__(self, token_ids: Sequence[int], items: Sequence[Item]) -> Positions:
        """Raises:
        InvalidHandle: metadata lacks what the model needs, or does not fit the prompt.
        """
        ids = torch.tensor([token_ids], dtype=torch.int64)
        arguments = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **_metadata(items)}
        arguments["mm_token_type_ids"] = _token_types(ids, items)
        try:
            with self._lock:
                found = self._prepare(ids, arguments)
        except (TypeError, IndexError, ValueError, RuntimeError, StopIteration) as error:
            raise InvalidHandle(f"the metadata does not fit the prompt: {error}") from error
        rows = found.reshape(-1, len(token_ids))
        whole = rows.to(torch.int64)
        if rows.is_floating_point() and not torch.equal(rows, whole.to(rows.dtype)):
            raise InvalidHandle("the seconds a temporal patch of a video do not give whole positions")
        delta = int(whole[1:].max()) + 1 - len(token_ids) if len(whole) > 1 else 0
        return Positions(ids=whole, delta=delta)


def _metadata(items: Sequence[Item]) -> dict[str, torch.Tensor]:
    """Each array over all items, in order of appearance: [items, ...]."""
    gathered: dict[str, list[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]] = {}
    for number, (modality, metadata, _) in enumerate(items, start=1):
        for name, array in metadata_arrays(f"{modality} (item {number})", metadata).items():
            gathered.setdefault(name, []).append(array)
    return {name: torch.from_numpy(np.concatenate(arrays)) for name, arrays in gathered.items()}


def _token_types(ids: torch.Tensor, items: Sequence[Item]) -> torch.Tensor:
    types = torch.zeros_like(ids)
    for modality, _, runs in items:
        for offset, length in runs:
            types[0, offset : offset + length] = _TOKEN_TYPES[modality]
    return types
