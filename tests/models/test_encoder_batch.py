"""Inputs are merged and rows split without mixing items."""

from __future__ import annotations

import pytest
import torch

from triptych.errors import InternalError
from triptych.models.encoder_batch import merge_inputs, split_by_audio_padding, split_rows
from triptych.models.interface import ProcessedItem


def _clip(length: int, padded: int | None = None) -> ProcessedItem:
    mask = torch.zeros(1, padded or length, dtype=torch.int64)
    mask[:, :length] = 1
    inputs = {"input_features": torch.ones(1, 4, padded or length), "feature_attention_mask": mask}
    return ProcessedItem(modality="audio", inputs=inputs, metadata=(), num_tokens=1)


def test_clips_of_different_lengths_are_padded_behind() -> None:
    merged = merge_inputs([_clip(3), _clip(5)])
    assert merged["input_features"].shape == (2, 4, 5)
    assert merged["feature_attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1] * 5]
    assert merged["input_features"][0, :, 3:].abs().max() == 0


def test_single_item_is_not_copied() -> None:
    clip = _clip(3)
    assert merge_inputs([clip])["input_features"] is clip.inputs["input_features"]


def test_short_clips_share_a_call_only_with_their_like() -> None:
    clips = list(enumerate([_clip(5), _clip(20), _clip(5, padded=9), _clip(7), _clip(10)]))
    groups = split_by_audio_padding(clips, chunk_length=10)
    assert [[index for index, _ in group] for group in groups] == [[0, 2], [1, 4], [3]]
    assert len(split_by_audio_padding(clips, chunk_length=None)) == 1


def test_rows_of_every_layout_are_split_alike() -> None:
    flat = torch.arange(12.0).reshape(6, 2)
    for rows in (flat, flat.reshape(3, 2, 2), (flat[:4], flat[4:])):
        first, second = split_rows([rows], [4, 2], torch.float32)
        assert torch.equal(first, flat[:4])
        assert torch.equal(second, flat[4:])


def test_layers_are_packed_side_by_side() -> None:
    main, deep = torch.zeros(3, 2), torch.ones(3, 2)
    [rows] = split_rows([main, (deep,)], [3], torch.float32)
    assert rows.tolist() == [[0, 0, 1, 1]] * 3


def test_unexpected_row_count_is_an_internal_error() -> None:
    with pytest.raises(InternalError, match="6 rows"):
        split_rows([torch.zeros(6, 2)], [4, 3], torch.float32)
