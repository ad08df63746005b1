"""Messages and metadata → prompt ids, without pixels; and ids → text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from tokenizers import Tokenizer
from transformers import AutoProcessor, PreTrainedTokenizerBase
from transformers.processing_utils import ProcessorMixin

from triptych.errors import CheckpointError, InvalidRequest, UnsupportedModality, UnsupportedModel
from triptych.messages import ChatMessage, MediaItem, MediaPart, Metadata, TextPart
from triptych.models.architecture import load_config
from triptych.models.chat_template import ChatTemplate
from triptych.models.eos import eos_token_ids
from triptych.models.interface import Prompt
from triptych.models.placeholders import Expansion, Placeholders
from triptych.models.placement import Placement, find_runs, substitute
from triptych.models.quiet import quiet
from triptych.models.token_bytes import TokenBytes


class HFChatTokenizer:
    """A `ChatTokenizer` on the tokenizer, processor and chat template saved beside a checkpoint. Thread-safe.

    Raises:
        CheckpointError: processor or chat template missing or damaged.
        UnsupportedModel: a tokenizer without a Rust backend, or of an unknown kind.
    """

    def __init__(self, path: Path) -> None:
        with quiet():
            processor, config = _load_processor(path), load_config(path)
            tokenizer = cast(PreTrainedTokenizerBase, processor.tokenizer)
            self._backend = _backend(tokenizer)
            self._template = ChatTemplate(processor)
        self._placeholders = Placeholders(processor, config)
        self._row_ids = {
            token: cast(int, tokenizer.convert_tokens_to_ids(token))
            for token in self._placeholders.markers.values()
        }
        self._bytes = TokenBytes(tokenizer, self._backend)
        # A character of byte-level vocabularies is a byte: at most one character of text.
        self._max_token_chars = max(map(len, self._backend.get_vocab(with_added_tokens=True)))
        own_eos = () if tokenizer.eos_token_id is None else (cast(int, tokenizer.eos_token_id),)
        self._eos_token_ids = eos_token_ids(path, config) or own_eos
        self._bos = cast("str | None", tokenizer.bos_token)
        text_kwargs = cast("dict[str, bool]", getattr(processor, "text_kwargs", {}))
        self._add_special_tokens = text_kwargs.get("add_special_tokens", True)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self._eos_token_ids

    @property
    def max_token_chars(self) -> int:
        return self._max_token_chars

    def render(
        self, messages: Sequence[ChatMessage], items: Sequence[MediaItem], metadata: Sequence[Metadata]
    ) -> Prompt:
        for number, message in enumerate(messages):
            self._check_text(number, message)
        order = [part.item for m in messages for part in m.content if isinstance(part, MediaPart)]
        placements = [Placement(i, items[i], self._expansion(items[i], metadata[i])) for i in order]
        text = self._template.render(messages, items)
        expanded, appeared = substitute(text, self._placeholders.markers, placements)
        token_ids = self._encode(expanded)
        return Prompt(token_ids=tuple(token_ids), items=find_runs(token_ids, self._row_ids, appeared))

    def num_tokens(self, item: MediaItem, metadata: Metadata) -> int:
        return self._expansion(item, metadata).num_tokens

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes(token_id)

    def token_text(self, token_id: int) -> str:
        name = self._bytes.special(token_id)
        return self._bytes(token_id).decode("utf-8", errors="replace") if name is None else name

    def _expansion(self, item: MediaItem, metadata: Metadata) -> Expansion:
        if item.modality not in self._placeholders.markers:
            raise UnsupportedModality(f"{item.name}: this model takes no {item.modality}")
        return self._placeholders.expand(item, metadata)

    def _check_text(self, number: int, message: ChatMessage) -> None:
        """Tokens may also be formed by parts side by side."""
        parts = [part.text if isinstance(part, TextPart) else "\0" for part in message.content]
        text = "".join((message.role, "\0", *parts))
        for token in self._placeholders.reserved:
            if token in text:
                raise InvalidRequest(
                    f"message {number + 1}: the text contains {token!r}, which stands for media here",
                    param=f"messages[{number}]",
                )

    def _encode(self, text: str) -> list[int]:
        """As processors do: a template that writes the first token itself gets no second one."""
        written = self._bos is not None and text.startswith(self._bos)
        add = self._add_special_tokens and not written
        # Unlike `encode`, it lets other threads run meanwhile: a long text must not hold up the event loop.
        return self._backend.encode_batch_fast([text], add_special_tokens=add)[0].ids


def _load_processor(path: Path) -> ProcessorMixin:
    try:
        loaded = AutoProcessor.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, TypeError, ImportError, KeyError, AttributeError) as error:
        raise CheckpointError(f"cannot load the processor in {path}: {error}") from error
    if not isinstance(loaded, ProcessorMixin):
        raise CheckpointError(f"{path} holds a {type(loaded).__name__}, not a multimodal processor")
    return loaded


def _backend(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """The Rust tokenizer: unlike the Python object around it, its `encode` changes nothing."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise UnsupportedModel(f"{type(tokenizer).__name__} has no fast tokenizer")
    backend.no_truncation()
    backend.no_padding()
    return backend
