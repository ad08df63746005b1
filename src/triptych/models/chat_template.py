"""A checkpoint's chat template: messages → text with one marker for each media item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, cast

import jinja2
from transformers.processing_utils import ProcessorMixin

from triptych.errors import CheckpointError, InvalidRequest
from triptych.messages import ChatMessage, MediaItem, MediaPart

Part = dict[str, str]
Message = dict[str, "str | list[Part]"]
_PROBE = "c6e1f0a9"


class ChatTemplate:
    """Renders messages as `processor.apply_chat_template` does, a generation prompt at the end. Thread-safe.

    Messages of one text part are given as plain strings, as clients of Transformers write them, unless the
    template cannot read strings; all others as lists of `{"type": "image"}`-like parts.

    Raises:
        CheckpointError: the checkpoint has no chat template, or one that renders no user message.
    """

    def __init__(self, processor: ProcessorMixin) -> None:
        self._apply = cast(Callable[..., str], processor.apply_chat_template)
        template = processor.chat_template or getattr(processor.tokenizer, "chat_template", None)
        if template is None:
            raise CheckpointError("the checkpoint has no chat template")
        # Processors fall back to no template of their tokenizer.
        self._chosen = None if processor.chat_template else cast(str, template)
        self._takes_strings = self._renders(_PROBE)
        self._takes_lists = self._renders([{"type": "text", "text": _PROBE}])
        if not self._takes_strings and not self._takes_lists:
            raise CheckpointError("the checkpoint's chat template renders no user message")

    def render(self, messages: Sequence[ChatMessage], items: Sequence[MediaItem]) -> str:
        """Raises:
        InvalidRequest: there is no message, or the template refuses them.
        """
        if not messages:
            raise InvalidRequest("there is no message", param="messages")
        return self._rendered([self._message(message, items) for message in messages])

    def _message(self, message: ChatMessage, items: Sequence[MediaItem]) -> Message:
        parts: list[Part] = [
            {"type": items[part.item].modality}
            if isinstance(part, MediaPart)
            else {"type": "text", "text": part.text}
            for part in message.content
        ]
        texts = [part["text"] for part in parts if part["type"] == "text"]
        only_text = len(texts) == len(parts)
        if only_text and (not self._takes_lists or (self._takes_strings and len(texts) <= 1)):
            return {"role": message.role, "content": "".join(texts)}
        return {"role": message.role, "content": parts}

    def _renders(self, content: str | list[Part]) -> bool:
        """Whether the template shows a user's text that is given so, and not the list's own spelling."""
        try:
            text = self._rendered([{"role": "user", "content": content}])
        except InvalidRequest:
            return False
        return _PROBE in text and "{'type'" not in text and '{"type"' not in text

    def _rendered(self, messages: list[Message]) -> str:
        more: dict[Literal["chat_template"], str] = (
            {} if self._chosen is None else {"chat_template": self._chosen}
        )
        try:
            return self._apply(messages, tokenize=False, add_generation_prompt=True, **more)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            raise InvalidRequest(
                f"the chat template refuses the messages: {error}", param="messages"
            ) from error
