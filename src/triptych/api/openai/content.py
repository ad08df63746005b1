"""`messages` → `ChatMessage`s and `MediaItem`s, both in the order in which the client wrote them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from triptych.api.openai.fields import Fields, Json, as_object, as_text, wrong
from triptych.api.openai.metadata import parse_metadata
from triptych.errors import InvalidRequest
from triptych.messages import ChatMessage, MediaItem, MediaPart, Metadata, Modality, TextPart

ROLES = ("system", "developer", "user", "assistant", "tool")
URL_PARTS: Mapping[str, Modality] = MappingProxyType(
    {"image_url": "image", "audio_url": "audio", "video_url": "video"}
)
EMBEDS_PARTS: Mapping[str, Modality] = MappingProxyType(
    {"image_embeds": "image", "audio_embeds": "audio", "video_embeds": "video"}
)
PART_TYPES = ("text", *URL_PARTS, "input_audio", *EMBEDS_PARTS)
MAX_UUID_CHARS = 256
MAX_INDEX = 1_000_000
AUDIO_FORMAT = re.compile(r"[A-Za-z0-9.+-]{1,32}")


class Conversation:
    """Collects the messages and items of one request.

    An item's index counts within its modality; a part may state its own (`index`), so that a router can send
    the parts of one request to several workers and errors still name the item that the client knows.
    """

    def __init__(self) -> None:
        self.messages: list[ChatMessage] = []
        self.items: list[MediaItem] = []
        self._taken: set[tuple[Modality, int]] = set()
        self._counts: dict[Modality, int] = {}

    def add_message(self, message: Fields) -> None:
        """
        Raises:
            InvalidRequest: names the field.
        """
        role = message.required_text("role")
        if role not in ROLES:
            raise wrong(message.at("role"), f"one of {', '.join(ROLES)}")
        if message.values.get("tool_calls"):
            raise InvalidRequest(
                f"{message.at('tool_calls')} is not supported", param=message.at("tool_calls")
            )
        self.messages.append(ChatMessage(role=role, content=self._content(message)))

    def _content(self, message: Fields) -> tuple[TextPart | MediaPart, ...]:
        content = message.values.get("content")
        if isinstance(content, str):
            return (TextPart(text=content),)
        if not isinstance(content, list):
            raise wrong(message.at("content"), "a string or a list of parts")
        return tuple(self._part(as_object(part, path)) for path, part in message.elements("content"))

    def _part(self, part: Fields) -> TextPart | MediaPart:
        kind = part.required_text("type")
        if kind == "text":
            return TextPart(text=part.required_text("text"))
        if kind in URL_PARTS:
            return self._add_item(part, URL_PARTS[kind], source=_url(part, kind))
        if kind == "input_audio":
            return self._add_item(part, "audio", source=_inline_audio(part))
        if kind in EMBEDS_PARTS:
            return self._add_item(part, EMBEDS_PARTS[kind], metadata=_metadata(part, kind))
        raise wrong(part.at("type"), f"one of {', '.join(PART_TYPES)}")

    def _add_item(
        self, part: Fields, modality: Modality, *, source: str | None = None, metadata: Metadata | None = None
    ) -> MediaPart:
        item = MediaItem(
            modality=modality,
            index=self._index(part, modality),
            source=source,
            metadata=metadata,
            uuid=_uuid(part),
        )
        self.items.append(item)
        return MediaPart(item=len(self.items) - 1)

    def _index(self, part: Fields, modality: Modality) -> int:
        counted = self._counts.get(modality, 0)
        self._counts[modality] = counted + 1
        stated = part.integer("index")
        index = counted if stated is None else stated
        if not 0 <= index <= MAX_INDEX:
            raise wrong(part.at("index"), f"between 0 and {MAX_INDEX}")
        if (modality, index) in self._taken:
            raise wrong(part.at("index"), f"unique, but there is another {modality} {index}")
        self._taken.add((modality, index))
        return index


def _url(part: Fields, kind: str) -> str:
    value: Json = part.values.get(kind)
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return Fields(value, part.at(kind)).required_text("url")
    raise wrong(part.at(kind), 'a URL or {"url": URL}')


def _inline_audio(part: Fields) -> str:
    """The base64 of an `input_audio` part as a data URL; the stated format is a hint only."""
    audio = as_object(part.values.get("input_audio"), part.at("input_audio"))
    data = audio.required_text("data")
    stated = audio.text("format")
    if stated is not None and not AUDIO_FORMAT.fullmatch(stated):
        raise wrong(audio.at("format"), 'a short name such as "wav"')
    if data.startswith("data:"):
        return data
    return f"data:audio/{stated or 'wav'};base64,{data}"


def _metadata(part: Fields, kind: str) -> Metadata:
    value: Json = part.values.get(kind)
    if not isinstance(value, dict):
        raise wrong(part.at(kind), "an object of named numeric arrays")
    return parse_metadata(Fields(value, part.at(kind)))


def _uuid(part: Fields) -> str | None:
    if not part.has("uuid"):
        return None
    uuid = as_text(part.values.get("uuid"), part.at("uuid"))
    if not 1 <= len(uuid) <= MAX_UUID_CHARS:
        raise wrong(part.at("uuid"), f"between 1 and {MAX_UUID_CHARS} characters")
    return uuid
