"""The JSON of a chat request → what an encode worker gets, and what a prefill-decode worker gets afterwards.

    client          [text, image_url A, text, input_audio B]
    encode worker   ["",   image_url A, "",   input_audio B]   same places: errors name the right part
    prefill-decode  [text, image_embeds, text, audio_embeds] + ec_transfer_params

Pure functions of bytes. Media stay strings inside JSON: nothing here looks into them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias, cast

import msgspec

from triptych.errors import InternalError, InvalidRequest
from triptych.messages import Modality

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | msgspec.Raw | None"
JsonObject = dict[str, Json]

RAW_PARTS: Mapping[str, Modality] = MappingProxyType(
    {"image_url": "image", "input_audio": "audio", "audio_url": "audio", "video_url": "video"}
)
EMBEDS_PARTS: Mapping[str, Modality] = MappingProxyType(
    {"image_embeds": "image", "audio_embeds": "audio", "video_embeds": "video"}
)
ENCODE_FIELDS = ("model", "user", "mm_processor_kwargs", "media_io_kwargs", "priority", "session_id")
BLANK: JsonObject = {"type": "text", "text": ""}
PARAMS = "ec_transfer_params"
ITEMS = "ec_items"


class EncodedEntry(msgspec.Struct):
    """What the router reads of a handle; the rest passes through."""

    metadata: msgspec.Raw
    item_indices: tuple[int, ...]


class EncodeReply(msgspec.Struct):
    ec_transfer_params: dict[str, msgspec.Raw]


@dataclass(frozen=True, slots=True)
class MediaPart:
    """A part that is media. `fields` is the client's, with `index` (within its modality) set."""

    message: int
    place: int
    modality: Modality
    fields: JsonObject

    @property
    def is_raw(self) -> bool:
        return self.fields["type"] in RAW_PARTS


@dataclass(frozen=True, slots=True)
class MediaRequest:
    """A decoded chat request with raw media in it."""

    fields: JsonObject
    messages: list[Json]
    parts: tuple[MediaPart, ...]

    def encode_body(self) -> bytes:
        """Raw media parts in their places, everything else blanked."""
        raw = {(part.message, part.place): part.fields for part in self.parts if part.is_raw}
        messages = [_blanked(message, at, raw) for at, message in enumerate(self.messages)]
        kept: JsonObject = {name: self.fields[name] for name in ENCODE_FIELDS if name in self.fields}
        return msgspec.json.encode(kept | {"stream": False, "messages": messages})

    def metadata_only_body(self, encode_reply: bytes) -> bytes:
        """The client's request with each raw part replaced by its metadata, and the handles beside it.

        Parts that were references already keep their own entry of `ec_items`.

        Raises:
            InternalError: the reply does not answer this request.
        """
        handles, entries = _read_reply(encode_reply, sum(part.is_raw for part in self.parts))
        remaining = iter(entries)
        params = self.fields.get(PARAMS)
        own: JsonObject = params if isinstance(params, dict) else {}
        own_items = own.get(ITEMS)
        stated = own_items if isinstance(own_items, list) else []
        replaced: dict[tuple[int, int], JsonObject] = {}
        items: list[Json] = []
        for at, part in enumerate(self.parts):
            if part.is_raw:
                key, metadata = next(remaining)
                replaced[part.message, part.place] = _metadata_only(part, metadata)
                items.append({"mm_hash": key})
            else:
                items.append(stated[at] if at < len(stated) else {})
        messages = [_replaced(message, at, replaced) for at, message in enumerate(self.messages)]
        merged: JsonObject = {**own, **handles, ITEMS: items}
        return msgspec.json.encode(self.fields | {"messages": messages, PARAMS: merged})


def split(body: bytes) -> MediaRequest | None:
    """The request, if it holds raw media. What is malformed in other ways is left for a worker to name.

    Raises:
        InvalidRequest: the body is no JSON object.
    """
    try:
        fields = msgspec.json.decode(body, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest("the body must be a JSON object") from error
    messages = cast(JsonObject, fields).get("messages")
    if not isinstance(messages, list):
        return None
    parts = _media_parts(messages)
    if not any(part.is_raw for part in parts):
        return None
    return MediaRequest(cast(JsonObject, fields), messages, parts)


def _media_parts(messages: list[Json]) -> tuple[MediaPart, ...]:
    found: list[MediaPart] = []
    counts: dict[Modality, int] = {}
    for at, message in enumerate(messages):
        for place, part in enumerate(_parts(message)):
            kind = part.get("type") if isinstance(part, dict) else None
            modality = (RAW_PARTS.get(kind) or EMBEDS_PARTS.get(kind)) if isinstance(kind, str) else None
            if isinstance(part, dict) and modality is not None:
                index = counts.get(modality, 0)
                counts[modality] = index + 1
                found.append(MediaPart(at, place, modality, {"index": index} | part))
    return tuple(found)


def _parts(message: Json) -> list[Json]:
    content = message.get("content") if isinstance(message, dict) else None
    return content if isinstance(content, list) else []


def _blanked(message: Json, at: int, raw: Mapping[tuple[int, int], JsonObject]) -> Json:
    if not isinstance(message, dict):
        return message
    content = message.get("content")
    if isinstance(content, str):
        return message | {"content": ""}
    if not isinstance(content, list):
        return message
    blanked: list[Json] = [raw.get((at, place)) or _blank_part(part) for place, part in enumerate(content)]
    return _with_content(message, blanked)


def _blank_part(part: Json) -> Json:
    """Text and references mean nothing to an encode worker; what is malformed stays, to be refused there."""
    kind = part.get("type") if isinstance(part, dict) else None
    return BLANK if isinstance(kind, str) and (kind == "text" or kind in EMBEDS_PARTS) else part


def _replaced(message: Json, at: int, replaced: Mapping[tuple[int, int], JsonObject]) -> Json:
    content = _parts(message)
    if not content or not isinstance(message, dict):
        return message
    parts: list[Json] = [replaced.get((at, place)) or part for place, part in enumerate(content)]
    return _with_content(message, parts)


def _with_content(message: JsonObject, content: list[Json]) -> JsonObject:
    changed = dict(message)
    changed["content"] = content
    return changed


def _metadata_only(part: MediaPart, metadata: msgspec.Raw) -> JsonObject:
    kind = part.fields["type"]
    kept = {name: value for name, value in part.fields.items() if name not in ("type", kind)}
    return {"type": f"{part.modality}_embeds", f"{part.modality}_embeds": metadata} | kept


def _read_reply(
    reply: bytes, num_items: int
) -> tuple[Mapping[str, msgspec.Raw], tuple[tuple[str, msgspec.Raw], ...]]:
    """The handles by key, and (key, metadata) of every raw item in order."""
    try:
        handles = msgspec.json.decode(reply, type=EncodeReply).ec_transfer_params
        entries = {key: msgspec.json.decode(raw, type=EncodedEntry) for key, raw in handles.items()}
    except (msgspec.DecodeError, RecursionError) as error:
        raise InternalError("an encode worker's reply is malformed") from error
    by_index = {at: (key, entry.metadata) for key, entry in entries.items() for at in entry.item_indices}
    if set(by_index) != set(range(num_items)):
        raise InternalError(f"an encode worker answered items {sorted(by_index)} of {num_items}")
    return handles, tuple(by_index[at] for at in range(num_items))
