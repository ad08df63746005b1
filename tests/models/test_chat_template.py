from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoProcessor
from transformers.processing_utils import ProcessorMixin

from triptych.errors import CheckpointError, InvalidRequest
from triptych.messages import ChatMessage, MediaItem, MediaPart, TextPart
from triptych.models.chat_template import ChatTemplate

STRINGS = "{% for m in messages %}{{ '[' + m['role'] + ']' + m['content'] }}{% endfor %}"
LISTS = (
    "{% for m in messages %}{{ '[' + m['role'] + ']' }}{% for p in m['content'] %}"
    "{{ p['text'] if p['type'] == 'text' else '<' + p['type'] + '>' }},{% endfor %}{% endfor %}"
)
BOTH = "{% if messages[0]['content'] is string %}" + STRINGS + "{% else %}" + LISTS + "{% endif %}"
IMAGE = MediaItem(modality="image", index=0, source="x")


@pytest.fixture
def processor(checkpoints: Callable[[str], Path]) -> ProcessorMixin:
    loaded = AutoProcessor.from_pretrained(checkpoints("internvl"))
    assert isinstance(loaded, ProcessorMixin)
    return loaded


def with_template(processor: ProcessorMixin, template: str | None) -> ChatTemplate:
    processor.chat_template = template
    return ChatTemplate(processor)


def message(*parts: TextPart | MediaPart) -> ChatMessage:
    return ChatMessage(role="user", content=parts)


A, B = TextPart(text="a"), TextPart(text="b")


def test_one_text_is_a_string_where_the_template_reads_strings(processor: ProcessorMixin) -> None:
    assert with_template(processor, BOTH).render([message(A)], []) == "[user]a"
    assert with_template(processor, LISTS).render([message(A)], []) == "[user]a,"


def test_several_texts_are_joined_only_where_the_template_reads_no_lists(processor: ProcessorMixin) -> None:
    assert with_template(processor, BOTH).render([message(A, B)], []) == "[user]a,b,"
    assert with_template(processor, STRINGS).render([message(A, B)], []) == "[user]ab"


def test_media_are_parts_in_the_order_written(processor: ProcessorMixin) -> None:
    template = with_template(processor, BOTH)
    assert template.render([message(A, MediaPart(item=0), B)], [IMAGE]) == "[user]a,<image>,b,"


def test_a_template_of_strings_refuses_media(processor: ProcessorMixin) -> None:
    with pytest.raises(InvalidRequest, match="the chat template refuses the messages"):
        with_template(processor, STRINGS).render([message(MediaPart(item=0))], [IMAGE])


def test_the_templates_own_complaint_reaches_the_client(processor: ProcessorMixin) -> None:
    template = with_template(
        processor, "{% if messages|length > 1 %}{{ raise_exception('one at a time') }}{% endif %}" + STRINGS
    )
    with pytest.raises(InvalidRequest, match="one at a time"):
        template.render([message(A), message(B)], [])


def test_the_tokenizers_template_serves_if_the_processor_has_none(processor: ProcessorMixin) -> None:
    processor.tokenizer.chat_template = STRINGS
    assert with_template(processor, None).render([message(A)], []) == "[user]a"


def test_a_checkpoint_without_template_is_refused(processor: ProcessorMixin) -> None:
    processor.tokenizer.chat_template = None
    with pytest.raises(CheckpointError, match="no chat template"):
        with_template(processor, None)


def test_a_template_that_shows_no_text_is_refused(processor: ProcessorMixin) -> None:
    with pytest.raises(CheckpointError, match="renders no user message"):
        with_template(processor, "nothing")
