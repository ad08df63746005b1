"""The golden tests of positions are in test_language.py; these are about refusals and threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.models.reference import conversation, load_model, metadata_array, process
from triptych.errors import InvalidHandle
from triptych.models.chat import HFChatTokenizer
from triptych.models.positions import Item, PromptPositions

Checkpoints = Callable[[str], Path]
VIDEO_RUN = ((2, 8),)


def video(seconds_per_grid: float) -> Item:
    grid = metadata_array("video_grid_thw", np.asarray([[2, 4, 4]]))
    seconds = metadata_array("video_second_per_grid", np.asarray([seconds_per_grid]))
    return ("video", (grid, seconds), VIDEO_RUN)


def omni_prompt(directory: Path) -> list[int]:
    config = load_model("qwen3_omni", directory).config
    start, pad, end = config.vision_start_token_id, config.video_token_id, config.vision_end_token_id
    return [1, start, *([pad] * 8), end, 2]


def test_seconds_between_frames_spread_positions(checkpoints: Checkpoints) -> None:
    directory = checkpoints("qwen3_omni")
    positions = PromptPositions(load_model("qwen3_omni", directory))
    found = positions(omni_prompt(directory), [video(2.0)])
    assert found.ids[1].tolist() == [0, 1, 2, 2, 2, 2, 28, 28, 28, 28, 29, 30]
    assert found.delta == 31 - 12


def test_seconds_that_give_broken_positions_are_an_invalid_handle(checkpoints: Checkpoints) -> None:
    directory = checkpoints("qwen3_omni")
    positions = PromptPositions(load_model("qwen3_omni", directory))
    with pytest.raises(InvalidHandle, match="whole positions"):
        positions(omni_prompt(directory), [video(0.7)])


def test_a_video_without_grid_is_an_invalid_handle(checkpoints: Checkpoints) -> None:
    directory = checkpoints("qwen2_5_vl")
    positions = PromptPositions(load_model("qwen2_5_vl", directory))
    image = metadata_array("image_grid_thw", np.asarray([[1, 4, 4]]))
    with pytest.raises(InvalidHandle, match="does not fit the prompt"):
        positions([1] * 12, [("image", (image,), ((0, 4),)), ("video", (), ((5, 4),))])


def test_threads_get_the_positions_of_their_own_prompt(checkpoints: Checkpoints) -> None:
    directory = checkpoints("qwen3_vl")
    tokenizer, positions = HFChatTokenizer(directory), PromptPositions(load_model("qwen3_vl", directory))
    work: list[tuple[tuple[int, ...], list[Item]]] = []
    for parts in (["<image>"], ["<video>", "a"], ["text"], ["<image>", "<image>", "b"]):
        conv = conversation(("user", parts))
        metadata = process(directory, conv).metadata
        prompt = tokenizer.render(conv.messages, conv.items, metadata)
        items: list[Item] = [
            (conv.items[p.item_index].modality, metadata[p.item_index], p.runs) for p in prompt.items
        ]
        work.append((prompt.token_ids, items))
    alone = [positions(*one) for one in work]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda one: positions(*one), work * 16, timeout=60))
    assert [found.delta for found in together] == [found.delta for found in alone] * 16
    assert all(found.ids.equal(expected.ids) for found, expected in zip(together, alone * 16, strict=True))
