"""The seams around a model. The Hugging Face implementations are the other files of this package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from triptych.kv.layout import KvShape as KvShape
from triptych.media.types import Decoded, DecodePolicy
from triptych.messages import ChatMessage, MediaItem, Metadata, Modality


@dataclass(frozen=True, slots=True)
class ProcessedItem:
    """Encoder input of one item, on the CPU.

    `inputs` holds the arguments of `get_<modality>_features` (pixel_values, image_grid_thw, input_features,
    feature_attention_mask, ...), each with this item alone.
    """

    modality: Modality
    inputs: Mapping[str, torch.Tensor]
    metadata: Metadata
    num_tokens: int
    """Rows that the encoder will yield = placeholders in the prompt."""


class MediaProcessor(Protocol):
    """Decoded media → encoder input. Thread-safe."""

    @property
    def modalities(self) -> frozenset[Modality]: ...

    @property
    def policy(self) -> DecodePolicy: ...

    def process(self, modality: Modality, decoded: Decoded) -> ProcessedItem:
        """Resize, normalise, patchify, mel; the same values as the model's own processor called on this item.

        Raises:
            MediaInvalid: the processor refuses the item (aspect ratio, too short, ...).
            UnsupportedModality: the model takes no such media.
        """
        ...


class EncoderModel(Protocol):
    """The encoder half. Thread-safe: `encode` keeps no state, so passes of several threads overlap."""

    @property
    def namespace(self) -> str:
        """Names model, weights digest and dtype; part of every key."""
        ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def widths(self) -> Mapping[Modality, int]:
        """Packed row width by modality, measured at start-up."""
        ...

    def encode(self, items: Sequence[ProcessedItem]) -> list[torch.Tensor]:
        """One forward pass a modality present; returns [num_tokens, width] (self.dtype, CPU, contiguous) for
        each item, in order. DeepStack layers are packed behind the main rows: [main | layer 1 | ...].
        """
        ...


@dataclass(frozen=True, slots=True)
class PlacedItem:
    """One item of a rendered prompt: (offset, length) runs of the positions that its rows fill."""

    item_index: int
    """Position in `ChatRequest.items`."""
    runs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    token_ids: tuple[int, ...]
    items: tuple[PlacedItem, ...]
    """In order of appearance."""


class ChatTokenizer(Protocol):
    """Messages and metadata → prompt ids, without pixels; and ids → text. Thread-safe."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    @property
    def max_token_chars(self) -> int:
        """No token stands for more characters of text: bounds the tokens of a text from below."""
        ...

    def render(
        self, messages: Sequence[ChatMessage], items: Sequence[MediaItem], metadata: Sequence[Metadata]
    ) -> Prompt:
        """Apply the chat template, expand every placeholder from metadata, tokenise.

        Identical ids to the model's own processor called with the media. `metadata[i]` belongs to `items[i]`.

        Raises:
            InvalidRequest: the template refuses the messages, or text contains a placeholder token.
            UnsupportedModality: the template or model has no place for an item.
            InvalidHandle: metadata lacks what this model needs, or has a wrong shape.
        """
        ...

    def num_tokens(self, item: MediaItem, metadata: Metadata) -> int:
        """Placeholders that this item takes."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token; special tokens give b""."""
        ...

    def token_text(self, token_id: int) -> str:
        """One token as OpenAI's logprobs show it; special tokens by their name."""
        ...


@dataclass(frozen=True, slots=True)
class Positions:
    """Rotary positions of a prompt.

    `ids`: [rows, num_tokens] int64; rows 1 for plain rotary, 4 for multimodal (text, then t, h, w).
    A generated token at sequence index n has position n in row 0 and n + `delta` in the others.
    """

    ids: torch.Tensor
    delta: int


@dataclass(frozen=True, slots=True)
class EmbeddingRows:
    """What replaces placeholder embeddings: `targets` [k] int64 batch indices, `rows` [k, width]."""

    modality: Modality
    targets: torch.Tensor
    rows: torch.Tensor


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One varlen batch: prefill chunks and decodes of many sequences, concatenated along the token axis."""

    token_ids: torch.Tensor
    """[n] int64"""
    positions: torch.Tensor
    """[rows, n] int64"""
    embeddings: tuple[EmbeddingRows, ...]
    paging: object
    """Passed untouched to the attention function as keyword `paging`."""


class LanguageModel(Protocol):
    """The language half. Not thread-safe, except `positions`."""

    @property
    def kv_shape(self) -> KvShape: ...

    @property
    def max_context_tokens(self) -> int: ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    @property
    def vocab_size(self) -> int: ...

    def positions(
        self,
        token_ids: Sequence[int],
        items: Sequence[tuple[Modality, Metadata, tuple[tuple[int, int], ...]]],
    ) -> Positions:
        """Rotary positions from ids and metadata alone; `items` are (modality, metadata, runs) in order of
        appearance."""
        ...

    def check_width(self, modality: Modality, width: int) -> None:
        """Raises InvalidHandle if rows of that width are not this model's. For admission: once rows are in a
        batch, its other requests would suffer with the one that brought them."""
        ...

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Hidden states [n, hidden] after the last norm."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[k, hidden] → [k, vocab] float32."""
        ...
