"""Embeddings for engine tests, on the in-process transport."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import msgspec
import torch

from tests.language.tiny import HIDDEN
from triptych.config import TransportConfig
from triptych.messages import EmbeddingRef, Metadata, Modality, PromptItem, StageTiming, TensorRef
from triptych.transport.inproc import InprocConsumer, InprocExchange, InprocProducer


class Shelf:
    """Reserves and publishes embeddings; `consumer` reads them."""

    def __init__(self) -> None:
        config = TransportConfig(pool_bytes=1 << 23)
        exchange = InprocExchange()
        self.producer = InprocProducer(config, exchange)
        self.consumer = InprocConsumer(config, exchange)

    @property
    def num_references(self) -> int:
        """That nobody has released."""
        usage = self.producer.usage()
        return usage.num_slots + usage.num_held

    def pending(self, num_tokens: int, width: int = HIDDEN) -> TensorRef:
        return self.producer.reserve("key", "tiny", torch.float32, (num_tokens, width))

    def publish(self, ref: TensorRef, encode_ms: float | None = None) -> torch.Tensor:
        tensor = rows(ref.shape[0], ref.shape[1])
        note = b""
        if encode_ms is not None:
            note = msgspec.msgpack.encode((StageTiming(stage="encode", milliseconds=encode_ms),))
        self.producer.publish(ref, tensor, note)
        return tensor

    def ready(self, num_tokens: int) -> TensorRef:
        ref = self.pending(num_tokens)
        self.publish(ref)
        return ref


@contextmanager
def new_shelf() -> Generator[Shelf]:
    shelf = Shelf()
    try:
        yield shelf
    finally:
        shelf.consumer.close()
        shelf.producer.close()


def rows(num_tokens: int, width: int = HIDDEN) -> torch.Tensor:
    """The content of every published embedding of this size."""
    return torch.randn(num_tokens, width, generator=torch.Generator().manual_seed(num_tokens))


def placed(
    ref: TensorRef, *runs: tuple[int, int], modality: Modality = "image", metadata: Metadata = ()
) -> PromptItem:
    num_tokens, width = ref.shape
    embedding = EmbeddingRef(
        key=ref.key, modality=modality, num_tokens=num_tokens, width=width, metadata=metadata, tensor=ref
    )
    return PromptItem(name="image 1", ref=embedding, runs=runs)
