from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.errors import InternalError, InvalidRequest
from triptych.router.rewrite import MediaRequest, split

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}, "uuid": "a", "custom": 1}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
VIDEO = {"type": "video_url", "video_url": "https://example.com/v.mp4"}
TEXT = {"type": "text", "text": "look"}
EMBEDS = {"type": "image_embeds", "image_embeds": {"image_grid_thw": [1, 2, 2]}, "uuid": "old"}


def request(*messages: object, **fields: object) -> MediaRequest:
    found = split(json.dumps({"model": "m", "messages": messages, **fields}).encode())
    assert found is not None
    return found


def user(*parts: object) -> dict[str, object]:
    return {"role": "user", "content": parts, "name": "kim"}


def reply(*places: list[int]) -> bytes:
    """Key "k0" covers the first list of places, and so on."""
    handles = {
        f"k{n}": {"metadata": {"grid": [[1, 2, n]]}, "item_indices": at, "handle": f"h{n}"}
        for n, at in enumerate(places)
    }
    return json.dumps({"ec_transfer_params": handles}).encode()


def loaded(body: bytes) -> Any:
    return json.loads(body)


def test_an_encode_worker_gets_the_media_in_their_places_and_no_text() -> None:
    found = request(
        {"role": "system", "content": "secret"},
        user(TEXT, IMAGE, AUDIO, EMBEDS, IMAGE),
        temperature=0.5,
        stream=True,
        user="u",
        ec_transfer_params={},
    )
    blank = {"type": "text", "text": ""}
    assert loaded(found.encode_body()) == {
        "model": "m",
        "user": "u",
        "stream": False,
        "messages": [
            {"role": "system", "content": ""},
            user()
            | {
                "content": [blank, {**IMAGE, "index": 0}, {**AUDIO, "index": 0}, blank, {**IMAGE, "index": 2}]
            },
        ],
    }


def test_prefill_gets_metadata_in_the_same_order_and_all_other_fields() -> None:
    found = request(user(TEXT, IMAGE, AUDIO), user(VIDEO, IMAGE), temperature=0.5, unknown={"x": [1]})
    body = loaded(found.metadata_only_body(reply([0, 3], [1], [2])))
    first, second = (message["content"] for message in body.pop("messages"))
    assert first == [
        TEXT,
        {"type": "image_embeds", "image_embeds": {"grid": [[1, 2, 0]]}, "uuid": "a", "custom": 1, "index": 0},
        {"type": "audio_embeds", "audio_embeds": {"grid": [[1, 2, 1]]}, "index": 0},
    ]
    assert second == [
        {"type": "video_embeds", "video_embeds": {"grid": [[1, 2, 2]]}, "index": 0},
        {"type": "image_embeds", "image_embeds": {"grid": [[1, 2, 0]]}, "uuid": "a", "custom": 1, "index": 1},
    ]
    params = body.pop("ec_transfer_params")
    assert params.pop("ec_items") == [{"mm_hash": key} for key in ("k0", "k1", "k2", "k0")]
    assert params == loaded(reply([0, 3], [1], [2]))["ec_transfer_params"]
    assert body == {"model": "m", "temperature": 0.5, "unknown": {"x": [1]}}


def test_references_of_the_client_stay_beside_new_ones() -> None:
    found = request(
        user(EMBEDS, IMAGE), ec_transfer_params={"old": {"handle": "h"}, "ec_items": [{"mm_hash": "old"}]}
    )
    body = loaded(found.metadata_only_body(reply([0])))
    assert [part["type"] for part in body["messages"][0]["content"]] == ["image_embeds", "image_embeds"]
    assert body["messages"][0]["content"][0] == EMBEDS
    assert body["ec_transfer_params"]["old"] == {"handle": "h"}
    assert body["ec_transfer_params"]["ec_items"] == [{"mm_hash": "old"}, {"mm_hash": "k0"}]


def test_an_index_of_the_client_stays() -> None:
    found = request(user({**IMAGE, "index": 7}))
    assert loaded(found.encode_body())["messages"][0]["content"][0]["index"] == 7


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"messages": "x"},
        {"messages": [5, {"role": "user"}, {"content": "text"}, {"content": [5, {"type": 5}, TEXT]}]},
        {"messages": [user(EMBEDS)]},
    ],
)
def test_a_request_without_raw_media_needs_no_encoding(fields: dict[str, object]) -> None:
    assert split(json.dumps(fields).encode()) is None


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"a":' * 5000])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        split(body)


def test_malformed_parts_are_left_for_the_encode_worker_to_name() -> None:
    odd = [5, {"type": "strange"}, {"type": ["x"]}, {"type": "image_url", "image_url": 5, "index": 0}]
    found = request({"role": "user", "content": odd}, "x", {"role": 5, "content": 5})
    assert loaded(found.encode_body())["messages"] == [
        {"role": "user", "content": odd},
        "x",
        {"role": 5, "content": 5},
    ]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b"{}",
        b'{"ec_transfer_params": {"k": 5}}',
        b'{"ec_transfer_params": {"k": {"item_indices": [0]}}}',
        reply(),
        reply([1]),
        reply([0, 1]),
        reply([-1]),
    ],
)
def test_a_reply_that_does_not_answer_the_request_is_our_fault(answer: bytes) -> None:
    with pytest.raises(InternalError):
        request(user(IMAGE)).metadata_only_body(answer)


parts = st.lists(st.sampled_from([IMAGE, AUDIO, VIDEO, TEXT, EMBEDS]), max_size=6)


@settings(deadline=None)
@given(st.lists(parts, min_size=1, max_size=3))
def test_order_and_uuids_survive_whatever_the_mixture(contents: list[list[dict[str, object]]]) -> None:
    found = split(json.dumps({"messages": [user(*content) for content in contents]}).encode())
    raw = [part for content in contents for part in content if part in (IMAGE, AUDIO, VIDEO)]
    if found is None:
        assert raw == []
        return
    body = loaded(found.metadata_only_body(reply(*([at] for at in range(len(raw))))))
    sent = loaded(found.encode_body())
    numbers = iter(range(len(raw)))
    for before, after, encode in zip(contents, body["messages"], sent["messages"], strict=True):
        for old, new, asked in zip(before, after["content"], encode["content"], strict=True):
            assert old.get("uuid") == new.get("uuid")
            if old in (IMAGE, AUDIO, VIDEO):
                assert new[new["type"]] == {"grid": [[1, 2, next(numbers)]]}
                assert asked["type"] == old["type"]
            else:
                assert (new, asked) == (old, {"type": "text", "text": ""})


anything = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(max_size=4), st.sampled_from(["image_url", "text"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["type", "content", "image_url", "role"]), inner, max_size=3),
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=40)
@given(st.one_of(anything, st.lists(st.fixed_dictionaries({"content": st.lists(anything)}))))
def test_any_messages_are_rewritten_or_left(messages: object) -> None:
    with contextlib.suppress(InvalidRequest):
        found = split(json.dumps({"messages": messages}).encode())
        if found is not None:
            assert len(loaded(found.encode_body())["messages"]) == len(found.messages)
