from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tests.api.openai.bodies import MODEL, image, with_parts
from triptych.api.openai.parse import parse_chat
from triptych.errors import InvalidHandle, RequestError
from triptych.messages import ChatRequest, MetadataArray, StageTiming


def embeds(grid: object, **more: object) -> dict[str, object]:
    return {"type": "image_embeds", "image_embeds": {"image_grid_thw": grid}, **more}


def handle(token: str, *uuids: str, **timings_ms: float) -> dict[str, object]:
    return {"handle": token, "uuids": uuids, "timings_ms": timings_ms, "peer_host": "10.0.0.1", "new": [1]}


def bound(parts: Sequence[Mapping[str, object]], params: Mapping[str, object]) -> ChatRequest:
    return parse_chat(with_parts(*parts, ec_transfer_params=params), MODEL).request


def test_the_hash_of_a_place_comes_first() -> None:
    params = {"k1": handle("one"), "k2": handle("two"), "ec_items": [{"mm_hash": "k2"}, {"mm_hash": "k1"}]}
    request = bound([embeds([1, 4, 4], uuid="k1"), embeds([1, 2, 2])], params)
    assert [item.handle for item in request.items] == ["two", "one"]
    assert [item.handle_key for item in request.items] == ["k2", "k1"]


def test_a_uuid_may_be_the_key() -> None:
    assert (
        bound([embeds([1], uuid="k2")], {"k1": handle("one"), "k2": handle("two")}).items[0].handle == "two"
    )


def test_a_uuid_may_be_listed_by_one_handle() -> None:
    params = {"k1": handle("one", "a", "b"), "k2": handle("two", "c")}
    assert bound([embeds([1], uuid="b")], params).items[0].handle == "one"


def test_a_hash_that_no_handle_has_falls_back_to_the_uuid() -> None:
    params = {"k1": handle("one", "a"), "ec_items": [{"mm_hash": "other", "transfer_id": "t"}]}
    assert bound([embeds([1], uuid="a")], params).items[0].handle == "one"


def test_places_count_raw_media_too() -> None:
    params = {"k1": handle("one"), "ec_items": [{}, {"mm_hash": "k1"}]}
    request = bound([image("data:,1", uuid="u"), embeds([1])], params)
    assert [item.handle for item in request.items] == [None, "one"]


def test_metadata_may_be_flat_or_nested() -> None:
    request = bound([embeds([1, 4, 4], uuid="k"), embeds([[1, 4, 4]], uuid="k")], {"k": handle("one")})
    shapes = [item.metadata for item in request.items]
    assert shapes == [
        (MetadataArray(name="image_grid_thw", shape=(3,), values=(1, 4, 4)),),
        (MetadataArray(name="image_grid_thw", shape=(1, 3), values=(1, 4, 4)),),
    ]


WRONG: list[tuple[dict[str, object], dict[str, object] | None, str]] = [
    (embeds([1], uuid="k"), None, "image 1: metadata without ec_transfer_params"),
    (
        embeds([1], uuid="z"),
        {"k1": handle("one", "a")},
        "image 1: no handle in ec_transfer_params belongs to it",
    ),
    (embeds([1]), {"k1": handle("one")}, "image 1: no handle in ec_transfer_params belongs to it"),
    (
        embeds([1], uuid="a"),
        {"k1": handle("1", "a"), "k2": handle("2", "a")},
        "image 1: 2 handles list uuid 'a'",
    ),
    (embeds([1], uuid="k1"), {"k1": {}}, "ec_transfer_params.k1.handle must be a string"),
    (embeds([1], uuid="k1"), {"k1": "x"}, "ec_transfer_params.k1 must be an object"),
    (
        embeds([1], uuid="k1"),
        {"k1": {"handle": "h", "uuids": [1]}},
        "ec_transfer_params.k1.uuids[0] must be a string",
    ),
    (
        embeds([1], uuid="k1"),
        {"k1": {"handle": "h", "timings_ms": {"fetch": "x"}}},
        "ec_transfer_params.k1.timings_ms.fetch must be a number",
    ),
    (
        embeds([1], uuid="k1"),
        {"k1": handle("h"), "ec_items": 5},
        "ec_transfer_params.ec_items must be a list",
    ),
    (
        embeds([1], uuid="k1"),
        {"k1": handle("h"), "ec_items": [{"mm_hash": 5}]},
        "ec_transfer_params.ec_items[0].mm_hash must be a string",
    ),
]


@pytest.mark.parametrize(("part", "params", "message"), WRONG)
def test_a_part_that_cannot_be_bound_is_refused(
    part: dict[str, object], params: dict[str, object] | None, message: str
) -> None:
    with pytest.raises(InvalidHandle) as caught:
        parse_chat(with_parts(part, ec_transfer_params=params), MODEL)
    assert caught.value.message == message


def test_handles_are_not_looked_at_without_metadata_only_parts() -> None:
    params: dict[str, object] = {"consumer_zmq": ["tcp://1.2.3.4:5"], "ec_items": [{"transfer_id": "t"}]}
    assert bound([image("data:,1")], params).item_timings == ()


def test_time_spent_on_items_is_the_slowest_of_what_ran_together_and_the_sum_of_the_rest() -> None:
    params = {
        "k1": handle("1", fetch=5, media_decode=2, process=3),
        "k2": handle("2", fetch=7, process=4),
        "k3": handle("3", fetch=100),
    }
    parts = [embeds([1], uuid="k1"), embeds([1], uuid="k2"), embeds([1], uuid="k2")]
    assert bound(parts, params).item_timings == (
        StageTiming(stage="fetch", milliseconds=7),
        StageTiming(stage="media_decode", milliseconds=2),
        StageTiming(stage="process", milliseconds=7),
    )


def test_params_of_another_type_are_a_wrong_request() -> None:
    with pytest.raises(RequestError, match="ec_transfer_params must be an object"):
        parse_chat(with_parts(embeds([1]), ec_transfer_params=[]), MODEL)
