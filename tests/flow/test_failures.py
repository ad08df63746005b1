"""Wrong requests get typed errors that name the item; afterwards the server answers as before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.flow.media import data_url, picture
from tests.flow.served import Served

MODEL = "tiny-omni"


@pytest.fixture(autouse=True)
def answers_afterwards(server: Served) -> Iterator[None]:
    yield
    status, reply = server.post(chat("hello"))
    assert status == 200, reply


def chat(*content: str | dict[str, object], **fields: object) -> dict[str, object]:
    parts = [{"type": "text", "text": c} if isinstance(c, str) else c for c in content]
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": parts}],
        "max_tokens": 3,
        "temperature": 0,
        **fields,
    }


def media(kind: str, url: str) -> dict[str, object]:
    return {"type": kind, kind: {"url": url}}


def test_undecodable_bytes_name_the_item(server: Served) -> None:
    bad = media("image_url", data_url("image/png", b"not an image"))
    status, reply = server.post(chat(media("image_url", picture(1).url), bad))
    assert status == 400
    assert reply["error"]["code"] == "media_invalid"
    assert reply["error"]["message"].startswith("image 2:")


def test_a_loopback_url_is_blocked(server: Served) -> None:
    status, reply = server.post(chat(media("audio_url", "http://127.0.0.1:1/a.wav")))
    assert status == 400
    assert reply["error"]["code"] == "media_source_refused"
    assert "audio 1" in reply["error"]["message"]


@pytest.mark.parametrize("url", ["", "a.png", "ftp://example.com/a.png", "file:///etc/passwd"])
def test_a_source_that_is_not_accepted_is_refused(server: Served, url: str) -> None:
    status, reply = server.post(chat(media("video_url", url)))
    assert status == 400
    assert "video 1" in reply["error"]["message"]


def test_an_unknown_model_is_named(server: Served) -> None:
    status, reply = server.post(chat("hello", model="other"))
    assert status == 404
    assert reply["error"]["code"] == "model_not_found"
    assert MODEL in reply["error"]["message"]


def test_too_long_a_prompt_says_what_the_context_holds(server: Served) -> None:
    status, reply = server.post(chat("word " * 60_000))
    assert status == 400
    assert reply["error"]["code"] == "context_length_exceeded"


def test_a_placeholder_in_text_cannot_move_media(server: Served) -> None:
    status, reply = server.post(chat("<|image_pad|>", media("image_url", picture(1).url)))
    assert status == 400
    assert "<|image_pad|>" in reply["error"]["message"]


def test_a_wrong_field_is_named(server: Served) -> None:
    status, reply = server.post(chat("hello", temperature="hot"))
    assert status == 400
    assert reply["error"]["param"] == "temperature"


def test_an_invented_reference_is_refused(server: Served) -> None:
    part: dict[str, object] = {
        "type": "image_embeds",
        "image_embeds": {"image_grid_thw": [1, 4, 4]},
        "uuid": "k",
    }
    handles = {
        "k": {
            "metadata": {"image_grid_thw": [[1, 4, 4]]},
            "item_indices": [0],
            "modality": "image",
            "num_tokens": 4,
            "handle": "AAAA",
            "uuids": [],
        }
    }
    status, reply = server.post(chat(part, ec_transfer_params=handles))
    assert status == 400
    assert reply["error"]["code"] == "invalid_handle"
