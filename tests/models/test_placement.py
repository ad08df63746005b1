from __future__ import annotations

import pytest

from triptych.errors import InvalidRequest, UnsupportedModality
from triptych.messages import MediaItem, Modality
from triptych.models.interface import PlacedItem
from triptych.models.placeholders import Expansion
from triptych.models.placement import Placement, find_runs, substitute

MARKERS: dict[Modality, str] = {"image": "<i>", "video": "<v>"}
ROW_IDS = {"<i>": 1, "<v>": 2}


def placed(number: int, modality: Modality, num_tokens: int, text: str | None = None) -> Placement:
    marker = MARKERS[modality]
    expansion = Expansion(text=text or marker * num_tokens, row_token=marker, num_tokens=num_tokens)
    return Placement(number, MediaItem(modality=modality, index=number, source="x"), expansion)


def test_markers_are_replaced_in_order_of_their_modality() -> None:
    first, second, film = placed(0, "image", 2), placed(1, "image", 1), placed(2, "video", 3)
    text, appeared = substitute("a<v>b<i>c<i>d", MARKERS, [first, second, film])
    assert text == "a<v><v><v>b<i><i>c<i>d"
    assert appeared == [film, first, second]


def test_expansions_are_not_expanded_again() -> None:
    """Frames of a video may be written with the image's marker."""
    film = placed(0, "video", 2, "F1:<i>F2:<i>")
    assert substitute("<v><i>", MARKERS, [film, placed(1, "image", 1)])[0] == "F1:<i>F2:<i><i>"


def test_an_item_without_marker_has_no_place() -> None:
    with pytest.raises(UnsupportedModality, match="image 2: the chat template has no place"):
        substitute("<i>", MARKERS, [placed(0, "image", 1), placed(1, "image", 1)])


def test_a_marker_without_item_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="<v>"):
        substitute("<i><v>", MARKERS, [placed(0, "image", 1)])


def test_a_model_without_media_leaves_the_text_alone() -> None:
    assert substitute("a<i>", {}, []) == ("a<i>", [])


def test_runs_split_where_other_tokens_stand_and_where_items_meet() -> None:
    placements = [placed(5, "image", 3), placed(6, "image", 2), placed(7, "video", 1)]
    assert find_runs([9, 1, 1, 9, 1, 1, 1, 2], ROW_IDS, placements) == (
        PlacedItem(item_index=5, runs=((1, 2), (4, 1))),
        PlacedItem(item_index=6, runs=((5, 2),)),
        PlacedItem(item_index=7, runs=((7, 1),)),
    )


@pytest.mark.parametrize("ids", [[1], [1, 1, 1], [2, 2], [1, 9, 2]], ids=str)
def test_other_media_tokens_than_those_of_the_items_are_refused(ids: list[int]) -> None:
    with pytest.raises(InvalidRequest, match="media tokens"):
        find_runs(ids, ROW_IDS, [placed(0, "image", 2)])


def test_text_has_no_runs() -> None:
    assert find_runs([9, 9], ROW_IDS, []) == ()
