from __future__ import annotations

import inspect
from typing import get_args

import msgspec
import pytest

from triptych import messages
from triptych.errors import InvalidRequest
from triptych.messages import (
    Cancel,
    ChatEvent,
    EngineInbox,
    EngineOutbox,
    EngineReady,
    Failed,
    Finished,
    GenerateRequest,
    MediaItem,
    MetadataArray,
    Release,
    SamplingParams,
    StageTiming,
    StepOutput,
    TextDelta,
    TokenEvent,
    TokenLogprobs,
)

INBOX = (
    GenerateRequest(request_id="r", token_ids=(1, 2), items=(), sampling=SamplingParams(), deadline_ms=5),
    Cancel(request_id="r"),
    Release(refs=()),
)
OUTBOX = (
    EngineReady(
        max_context_tokens=8, kv_page_tokens=2, num_kv_pages=4, eos_token_ids=(0,), load_report="3 of 4"
    ),
    StepOutput(
        events=(
            TokenEvent(request_id="r", token_id=1, logprobs=TokenLogprobs(logprob=-0.5, top=((1, -0.5),))),
            Failed(request_id="q", code="internal", message="m"),
        ),
        num_running=1,
        num_waiting=0,
        kv_usage=0.5,
    ),
    Failed(request_id="r", code="internal", message="m"),
)
EVENTS = (
    TextDelta(text="a", token_ids=(3,)),
    Finished(
        finish_reason="stop",
        num_prompt_tokens=1,
        num_output_tokens=1,
        timings=(StageTiming(stage="decode", milliseconds=1.5),),
    ),
)


@pytest.mark.parametrize(
    ("union", "members"), [(EngineInbox, INBOX), (EngineOutbox, OUTBOX), (ChatEvent, EVENTS)]
)
def test_every_member_of_every_union_survives_the_wire(
    union: object, members: tuple[msgspec.Struct, ...]
) -> None:
    assert {type(member) for member in members} == set(get_args(union))
    for member in members:
        raw = msgspec.msgpack.encode(member)
        assert msgspec.msgpack.decode(raw, type=union) == member  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_every_message_is_frozen_and_tagged_by_its_name() -> None:
    structs = [
        cls
        for _, cls in inspect.getmembers(messages, inspect.isclass)
        if issubclass(cls, msgspec.Struct) and cls.__module__ == messages.__name__
    ]
    assert len(structs) > 20
    for cls in structs:
        assert cls.__struct_config__.frozen
        assert cls.__struct_config__.tag == cls.__name__
        assert not cls.__struct_config__.array_like


def test_a_metadata_array_holds_what_its_shape_says() -> None:
    with pytest.raises(InvalidRequest, match="image_grid_thw"):
        MetadataArray(name="image_grid_thw", shape=(1, 3), values=(1, 4))


def test_an_item_has_either_a_source_or_metadata() -> None:
    with pytest.raises(InvalidRequest, match="video 3"):
        MediaItem(modality="video", index=2)
    with pytest.raises(InvalidRequest, match="video 3"):
        MediaItem(modality="video", index=2, source="data:,", metadata=())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -0.1),
        ("temperature", 2.5),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_k", -1),
        ("num_logprobs", 21),
        ("stop", ("",)),
    ],
)
def test_values_out_of_range_are_refused_when_built_and_when_decoded(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest):
        msgspec.structs.replace(SamplingParams(), **{field: value})
