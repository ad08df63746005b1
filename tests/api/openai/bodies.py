"""Bodies of chat requests."""

from __future__ import annotations

import json

from triptych.api.openai.parse import ParsedChat, parse_chat

MODEL = "tiny"


def body(**fields: object) -> bytes:
    """A valid request with `fields` on top."""
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **fields}).encode()


def parsed(**fields: object) -> ParsedChat:
    return parse_chat(body(**fields), MODEL)


def with_parts(*parts: object, **fields: object) -> bytes:
    return body(messages=[{"role": "user", "content": parts}], **fields)


def image(url: str, **more: object) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url}, **more}


def text(value: str) -> dict[str, object]:
    return {"type": "text", "text": value}
