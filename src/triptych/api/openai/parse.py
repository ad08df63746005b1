"""The body of `POST /v1/chat/completions` → `ChatRequest`. Unknown fields are ignored, wrong ones refused."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from triptych.api.openai.content import Conversation
from triptych.api.openai.fields import Fields, as_object, decode_json, wrong
from triptych.api.openai.handles import bind_handles
from triptych.api.openai.sampling import parse_sampling
from triptych.errors import InvalidRequest, UnknownModel
from triptych.messages import ChatRequest


@dataclass(frozen=True, slots=True)
class Delivery:
    """How the client wants the answer; nothing that a stage needs to know.

    `return_token_ids`: choices and deltas carry `token_ids`. `include_timings`: the reply, or the last chunk
    of a stream, carries `timings_ms`.
    """

    stream: bool = False
    include_usage: bool = False
    return_token_ids: bool = False
    include_timings: bool = False


@dataclass(frozen=True, slots=True)
class ParsedChat:
    request: ChatRequest
    delivery: Delivery


def parse_chat(body: bytes, served_model: str, label: str | None = None) -> ParsedChat:
    """Read a chat request; metadata-only parts are bound to their handles.

    Raises:
        InvalidRequest: not JSON, or a field has a wrong type, range or combination; `param` names it.
        UnknownModel: another model than `served_model` is asked for.
        InvalidHandle: a metadata-only part has no handle.
    """
    fields = as_object(decode_json(body), "")
    _check_model(fields, served_model)
    conversation = _conversation(fields)
    items, item_timings = bind_handles(conversation.items, fields.object("ec_transfer_params"))
    request = ChatRequest(
        request_id=new_request_id(),
        model=served_model,
        messages=tuple(conversation.messages),
        items=items,
        sampling=parse_sampling(fields),
        label=label,
        item_timings=item_timings,
    )
    return ParsedChat(request, _delivery(fields))


def parse_encode(body: bytes, served_model: str, label: str | None = None) -> ChatRequest:
    """Read a request to an encode worker: its media parts matter, sampling and delivery do not.

    Raises:
        InvalidRequest: as `parse_chat`; also for a metadata-only part, which holds nothing to encode.
        UnknownModel: another model than `served_model` is asked for.
    """
    fields = as_object(decode_json(body), "")
    _check_model(fields, served_model)
    conversation = _conversation(fields)
    for item in conversation.items:
        if item.source is None:
            raise InvalidRequest(f"{item.name}: an encode worker takes media, not metadata", param="messages")
    return ChatRequest(
        request_id=new_request_id(),
        model=served_model,
        messages=tuple(conversation.messages),
        items=tuple(conversation.items),
        label=label,
    )


def new_request_id() -> str:
    """128 random bits, hex: a client can neither choose nor guess it."""
    return secrets.token_hex(16)


def _check_model(fields: Fields, served_model: str) -> None:
    model = fields.required_text("model")
    if model != served_model:
        raise UnknownModel(f"model {model[:200]!r} is not served here, {served_model!r} is", param="model")


def _conversation(fields: Fields) -> Conversation:
    conversation = Conversation()
    for path, message in fields.elements("messages"):
        conversation.add_message(as_object(message, path))
    if not conversation.messages:
        raise wrong("messages", "a list of at least one message")
    return conversation


def _delivery(fields: Fields) -> Delivery:
    options = fields.object("stream_options")
    stream = fields.flag("stream")
    return Delivery(
        stream=stream,
        include_usage=stream and options is not None and options.flag("include_usage"),
        return_token_ids=fields.flag("return_token_ids"),
        include_timings=fields.flag("include_timings"),
    )
