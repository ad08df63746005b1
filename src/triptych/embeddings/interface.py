"""The seam of the encoder cache: embeddings by key, with what prefill needs to know of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from triptych.messages import Metadata, Modality


@dataclass(frozen=True, slots=True)
class CachedEmbedding:
    """Encoder output of one item. `tensor`: [num_tokens, width], CPU, contiguous; nobody writes to it."""

    tensor: torch.Tensor
    metadata: Metadata
    num_tokens: int
    modality: Modality

    @property
    def size_bytes(self) -> int:
        return self.tensor.nbytes


class EmbeddingStore(Protocol):
    """Embeddings by key. A miss is never an error. Thread-safe."""

    def get(self, key: str) -> CachedEmbedding | None:
        """None: not there, or not any more."""
        ...

    def put(self, key: str, embedding: CachedEmbedding) -> None:
        """Keep it if there is room or room can be made."""
        ...

    def close(self) -> None:
        """Forget everything. Can be called twice."""
        ...
