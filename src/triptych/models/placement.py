"""Where the items of a prompt stand: markers in the template's text, then runs of token positions.

text    … <|vision_start|><|image_pad|><|vision_end|> …            one marker an item
expand  … <|vision_start|><|image_pad|><|image_pad|><|vision_end|> …
ids     … 7 1 1 8 …                                                 run (offset, 2)
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from triptych.errors import InvalidRequest, UnsupportedModality
from triptych.messages import MediaItem, Modality
from triptych.models.interface import PlacedItem
from triptych.models.placeholders import Expansion


@dataclass(frozen=True, slots=True)
class Placement:
    """One item at one place; `item_index` is its position in `ChatRequest.items`."""

    item_index: int
    item: MediaItem
    expansion: Expansion


def substitute(
    text: str, markers: Mapping[Modality, str], placements: Sequence[Placement]
) -> tuple[str, list[Placement]]:
    """Put each item's expansion in the place of its marker: the n-th marker of a modality is its n-th item.

    `placements` are in the order of the messages; they return in the order of appearance in the text.

    Raises:
        UnsupportedModality: the template wrote no marker for an item.
        InvalidRequest: there are more markers than items.
    """
    waiting = {modality: deque(p for p in placements if p.item.modality == modality) for modality in markers}
    by_marker = {marker: modality for modality, marker in markers.items()}
    appeared: list[Placement] = []

    def expansion(match: re.Match[str]) -> str:
        queue = waiting[by_marker[match[0]]]
        if not queue:
            raise InvalidRequest(f"the messages form the media token {match[0]!r}", param="messages")
        appeared.append(queue.popleft())
        return appeared[-1].expansion.text

    if by_marker:
        text = re.sub("|".join(map(re.escape, by_marker)), expansion, text)
    for queue in waiting.values():
        if queue:
            raise UnsupportedModality(f"{queue[0].item.name}: the chat template has no place for it")
    return text, appeared


def find_runs(
    token_ids: Sequence[int], row_ids: Mapping[str, int], placements: Sequence[Placement]
) -> tuple[PlacedItem, ...]:
    """The runs that the rows of each item fill. `row_ids` are the ids of all tokens that rows stand in for.

    Raises:
        InvalidRequest: there are other such tokens in the prompt than those of the items.
    """
    ids = np.asarray(token_ids, dtype=np.int64)
    positions = np.flatnonzero(np.isin(ids, list(row_ids.values())))
    expected = [row_ids[p.expansion.row_token] for p in placements for _ in range(p.expansion.num_tokens)]
    if ids[positions].tolist() != expected:
        raise InvalidRequest("the messages form media tokens", param="messages")
    ends = np.cumsum([p.expansion.num_tokens for p in placements])
    return tuple(
        PlacedItem(item_index=placement.item_index, runs=_runs(positions[end - n : end]))
        for placement, end in zip(placements, ends.tolist(), strict=True)
        for n in (placement.expansion.num_tokens,)
    )


def _runs(positions: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> tuple[tuple[int, int], ...]:
    pieces = np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1)
    return tuple((int(piece[0]), len(piece)) for piece in pieces)
