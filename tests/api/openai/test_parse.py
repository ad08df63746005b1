from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api.openai.bodies import MODEL, body, image, parsed, text, with_parts
from triptych.api.openai.parse import Delivery, parse_chat, parse_encode
from triptych.errors import InvalidRequest, RequestError, UnknownModel
from triptych.messages import SamplingParams


def test_request_ids_are_the_servers_and_the_label_is_the_clients() -> None:
    first, second = (parse_chat(body(request_id="mine"), MODEL, "label").request for _ in range(2))
    assert len(bytes.fromhex(first.request_id)) == 16
    assert first.request_id != second.request_id
    assert (first.label, first.tenant, first.model) == ("label", "", MODEL)


def test_delivery_is_read() -> None:
    found = parsed(
        stream=True, stream_options={"include_usage": True}, return_token_ids=True, include_timings=True
    )
    assert found.delivery == Delivery(True, True, True, True)
    assert parsed().delivery == Delivery(False, False, False, False)


@pytest.mark.parametrize("name", ["stream", "return_token_ids", "include_timings"])
def test_delivery_of_another_type_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{name} must be true or false$"):
        parsed(**{name: "yes"})


def test_stream_options_are_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match=r"^stream_options.include_usage must be true or false$"):
        parsed(stream=True, stream_options={"include_usage": 1})


def test_another_model_is_unknown_and_the_served_one_is_named() -> None:
    with pytest.raises(UnknownModel, match="'other' is not served here, 'tiny' is") as caught:
        parsed(model="other")
    assert caught.value.param == "model"


@pytest.mark.parametrize("wrong", [b"[]", b"5", b"null", b'"x"'])
def test_a_body_that_is_no_object_is_refused(wrong: bytes) -> None:
    with pytest.raises(InvalidRequest, match="the body must be an object"):
        parse_chat(wrong, MODEL)


def test_an_encode_request_needs_neither_sampling_nor_handles() -> None:
    request = parse_encode(
        with_parts(text(""), image("data:,1"), n=4, temperature="?", ec_transfer_params=1), MODEL, "l"
    )
    assert [item.source for item in request.items] == ["data:,1"]
    assert (request.sampling, request.label) == (SamplingParams(), "l")


def test_an_encode_worker_takes_no_metadata() -> None:
    part = {"type": "video_embeds", "video_embeds": {"video_grid_thw": [1, 4, 4]}}
    with pytest.raises(InvalidRequest, match="video 1: an encode worker takes media, not metadata"):
        parse_encode(with_parts(part), MODEL)


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
KINDS = ("text", "image_url", "input_audio", "audio_url", "video_url", "image_embeds", "audio_embeds", "x")
parts = st.fixed_dictionaries(
    {"type": st.one_of(st.sampled_from(KINDS), anything)},
    optional=dict.fromkeys(
        ("text", "image_url", "input_audio", "video_url", "image_embeds", "uuid", "index"), anything
    ),
)
messages = st.one_of(
    anything,
    st.lists(
        st.fixed_dictionaries(
            {
                "role": st.one_of(st.just("user"), anything),
                "content": st.one_of(st.lists(st.one_of(parts, anything), max_size=4), anything),
            }
        ),
        max_size=3,
    ),
)
NAMES = (
    *("max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "seed", "stop", "ignore_eos"),
    *(
        "stop_token_ids",
        "logprobs",
        "top_logprobs",
        "stream",
        "stream_options",
        "user",
        "n",
        "tools",
        "min_tokens",
    ),
    *("return_token_ids", "include_timings", "ec_transfer_params", "logit_bias", "response_format"),
)
bodies = st.fixed_dictionaries(
    {"model": st.one_of(st.just(MODEL), anything), "messages": messages},
    optional=dict.fromkeys(NAMES, anything),
)


@settings(deadline=None, max_examples=100)
@given(bodies)
def test_any_json_is_read_or_refused_as_a_wrong_request(value: dict[str, object]) -> None:
    encoded = json.dumps(value).encode()
    for parse in (parse_chat, parse_encode):
        with contextlib.suppress(RequestError):
            parse(encoded, MODEL)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_as_a_wrong_request(value: bytes) -> None:
    with pytest.raises(RequestError):
        parse_chat(value, MODEL)
