from __future__ import annotations

import pytest

from tests.api.openai.bodies import MODEL, body, image, text, with_parts
from triptych.api.openai.parse import parse_chat, parse_encode
from triptych.errors import InvalidRequest
from triptych.messages import ChatMessage, MediaPart, TextPart

AUDIO = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "mp3"}}
VIDEO = {"type": "video_url", "video_url": "https://example.com/v.mp4"}


def test_parts_keep_the_clients_order_over_all_modalities() -> None:
    request = parse_chat(
        with_parts(text("a"), image("data:,1"), VIDEO, text("b"), AUDIO, image("data:,2", uuid="u2")), MODEL
    ).request
    assert request.messages == (
        ChatMessage(
            role="user",
            content=(
                TextPart(text="a"),
                MediaPart(item=0),
                MediaPart(item=1),
                TextPart(text="b"),
                MediaPart(item=2),
                MediaPart(item=3),
            ),
        ),
    )
    assert [(item.name, item.source, item.uuid) for item in request.items] == [
        ("image 1", "data:,1", None),
        ("video 1", "https://example.com/v.mp4", None),
        ("audio 1", "data:audio/mp3;base64,UklGRg==", None),
        ("image 2", "data:,2", "u2"),
    ]


def test_items_count_across_messages() -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [image("data:,1")]},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": [image("data:,2")]},
    ]
    request = parse_chat(body(messages=messages), MODEL).request
    assert [message.role for message in request.messages] == ["developer", "user", "assistant", "user"]
    assert [item.name for item in request.items] == ["image 1", "image 2"]
    assert request.messages[3].content == (MediaPart(item=1),)


def test_a_stated_index_names_the_item() -> None:
    request = parse_encode(with_parts(image("data:,1", index=3), image("data:,2", index=1)), MODEL)
    assert [item.name for item in request.items] == ["image 4", "image 2"]


def test_inline_audio_may_be_a_data_url_already_and_need_no_format() -> None:
    plain = {"type": "input_audio", "input_audio": {"data": "AAAA"}}
    ready = {"type": "input_audio", "input_audio": {"data": "data:audio/ogg;base64,AAAA", "format": "ogg"}}
    request = parse_encode(with_parts(plain, ready), MODEL)
    assert [i.source for i in request.items] == ["data:audio/wav;base64,AAAA", "data:audio/ogg;base64,AAAA"]


PART = "messages[0].content[0]"
WRONG_PARTS: list[tuple[object, str]] = [
    (5, f"{PART} must be an object"),
    ({}, f"{PART}.type must be a string"),
    ({"type": "image"}, f"{PART}.type must be one of text, image_url"),
    ({"type": "text"}, f"{PART}.text must be a string"),
    ({"type": "image_url"}, f"{PART}.image_url must be a URL"),
    ({"type": "image_url", "image_url": {"url": 5}}, f"{PART}.image_url.url must be a string"),
    ({"type": "image_url", "image_url": {}}, f"{PART}.image_url.url must be a string"),
    ({"type": "image_url", "image_url": None}, f"{PART}.image_url must be a URL"),
    ({"type": "video_url", "video_url": [1]}, f"{PART}.video_url must be a URL"),
    ({"type": "audio_url", "audio_url": 1}, f"{PART}.audio_url must be a URL"),
    ({"type": "input_audio"}, f"{PART}.input_audio must be an object"),
    ({"type": "input_audio", "input_audio": {"data": 1}}, f"{PART}.input_audio.data must be a string"),
    (
        {"type": "input_audio", "input_audio": {"data": "", "format": "a;b"}},
        f"{PART}.input_audio.format must be a short name",
    ),
    (image("data:,", uuid=1), f"{PART}.uuid must be a string"),
    (image("data:,", uuid=""), f"{PART}.uuid must be between 1 and 256 characters"),
    (image("data:,", uuid="u" * 257), f"{PART}.uuid must be between 1 and 256 characters"),
    (image("data:,", index=-1), f"{PART}.index must be between 0"),
    (image("data:,", index=True), f"{PART}.index must be an integer"),
    ({"type": "image_embeds", "image_embeds": "gASV"}, f"{PART}.image_embeds must be an object"),
    (
        {"type": "image_embeds", "image_embeds": {"image_grid_thw": "x"}},
        f"{PART}.image_embeds.image_grid_thw must be a number",
    ),
]


@pytest.mark.parametrize(("part", "message"), WRONG_PARTS)
def test_a_wrong_part_is_refused_by_name(part: object, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(with_parts(part), MODEL)
    assert caught.value.message.startswith(message)
    assert caught.value.param == message.split(" ")[0]


WRONG_MESSAGES: list[tuple[object, str]] = [
    ("x", "messages must be a list"),
    ([], "messages must be a list of at least one message"),
    (None, "messages must be a list of at least one message"),
    (["x"], "messages[0] must be an object"),
    ([{"content": "x"}], "messages[0].role must be a string"),
    ([{"role": "god", "content": "x"}], "messages[0].role must be one of system, developer"),
    ([{"role": "user"}], "messages[0].content must be a string or a list of parts"),
    ([{"role": "user", "content": 1}], "messages[0].content must be a string or a list of parts"),
    (
        [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [{}]}],
        "messages[1].tool_calls is not supported",
    ),
    (
        [
            {"role": "user", "content": "a"},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": 1}}]},
        ],
        "messages[1].content[0].image_url.url must be a string",
    ),
]


@pytest.mark.parametrize(("messages", "message"), WRONG_MESSAGES)
def test_wrong_messages_are_refused_by_name(messages: object, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(body(messages=messages), MODEL)
    assert caught.value.message.startswith(message)


def test_two_items_cannot_have_one_name() -> None:
    with pytest.raises(InvalidRequest, match=r"content\[1\].index must be unique"):
        parse_chat(with_parts(image("data:,1", index=1), image("data:,2")), MODEL)
