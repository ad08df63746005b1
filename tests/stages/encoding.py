"""An encode stage with real fetching, decoding, slots and handles; processor and encoder are a few lines."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import torch

from tests.api.serving import new_metrics
from tests.stages.preparing import POLICY, preparer
from triptych.config import EncoderConfig, TransportConfig
from triptych.embeddings.handle import HandleSigner
from triptych.embeddings.memory import MemoryStore
from triptych.encoder.runner import EncoderRunner
from triptych.errors import MediaInvalid
from triptych.media.types import Decoded, DecodedImage, DecodePolicy
from triptych.messages import ChatRequest, MediaItem, Metadata, MetadataArray, Modality, TensorRef
from triptych.models.interface import ProcessedItem
from triptych.stages.encode import EncodeParts, EncodeStage
from triptych.telemetry import Metrics
from triptych.transport.inproc import InprocConsumer, InprocExchange, InprocProducer

WIDTH = 1024
SIDE = 8
ITEM_BYTES = SIDE * WIDTH * 4
PEER = ("127.0.0.1", 4321)
SECRET = b"0123456789abcdef"
MODALITIES: frozenset[Modality] = frozenset(("image", "audio"))
WAIT_SECONDS = 20.0


@dataclass
class Gate:
    """Open unless closed; counts who came."""

    opened: threading.Event = field(default_factory=threading.Event)
    reached: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.opened.set()

    def close(self) -> None:
        self.opened.clear()
        self.reached.clear()

    def pass_through(self) -> None:
        self.reached.set()
        assert self.opened.wait(WAIT_SECONDS)


@dataclass
class CornerProcessor:
    """Takes one row per line of pixels; refuses images whose first pixel is in `refused`."""

    gate: Gate = field(default_factory=Gate)
    refused: set[tuple[int, ...]] = field(default_factory=set[tuple[int, ...]])
    num_calls: int = 0

    @property
    def modalities(self) -> frozenset[Modality]:
        return MODALITIES

    @property
    def policy(self) -> DecodePolicy:
        return POLICY

    def process(self, modality: Modality, decoded: Decoded) -> ProcessedItem:
        self.num_calls += 1
        self.gate.pass_through()
        assert isinstance(decoded, DecodedImage)
        corner = tuple(decoded.pixels[0, 0].tolist())
        if corner in self.refused:
            raise MediaInvalid(f"a corner of {corner}")
        height, width = decoded.pixels.shape[:2]
        return ProcessedItem(modality, {"corner": torch.tensor(corner)}, grid(height, width), height)


@dataclass
class CornerEncoder:
    """Every row holds the sum of the first pixel's colours; raises `failure` if there is one."""

    gate: Gate = field(default_factory=Gate)
    failure: Exception | None = None
    num_missing_rows: int = 0
    corners: list[list[int]] = field(default_factory=list[list[int]])
    """Of every item encoded so far."""

    @property
    def namespace(self) -> str:
        return "corner"

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def widths(self) -> Mapping[Modality, int]:
        return {"image": WIDTH, "audio": WIDTH}

    def encode(self, items: Sequence[ProcessedItem]) -> list[torch.Tensor]:
        self.gate.pass_through()
        if self.failure is not None:
            raise self.failure
        self.corners += [item.inputs["corner"].tolist() for item in items]
        return [
            torch.full((item.num_tokens - self.num_missing_rows, WIDTH), float(item.inputs["corner"].sum()))
            for item in items
        ]


@dataclass
class GatedProducer:
    """A producer that publishes once `gate` is open."""

    inner: InprocProducer
    gate: Gate = field(default_factory=Gate)

    def reserve(self, key: str, namespace: str, dtype: torch.dtype, shape: tuple[int, ...]) -> TensorRef:
        return self.inner.reserve(key, namespace, dtype, shape)

    def publish(self, ref: TensorRef, tensor: torch.Tensor, note: bytes = b"") -> None:
        self.gate.pass_through()
        self.inner.publish(ref, tensor, note)

    def fail(self, ref: TensorRef, code: str, message: str) -> None:
        self.inner.fail(ref, code, message)

    @property
    def capacity_bytes(self) -> int:
        return self.inner.capacity_bytes

    def is_wanted(self, ref: TensorRef) -> bool:
        return self.inner.is_wanted(ref)

    def withdraw(self, ref: TensorRef) -> None:
        self.inner.withdraw(ref)

    def close(self) -> None:
        self.inner.close()


@dataclass(frozen=True)
class Encoding:
    """Everything of one test; `reader` is where a language worker would stand."""

    stage: EncodeStage
    processor: CornerProcessor
    encoder: CornerEncoder
    runner: EncoderRunner
    producer: GatedProducer
    reader: InprocConsumer
    store: MemoryStore
    signer: HandleSigner
    metrics: Metrics

    @property
    def num_slots(self) -> int:
        """Slots that take memory of the pool."""
        usage = self.producer.inner.usage()
        return usage.num_slots + usage.num_held


@asynccontextmanager
async def encoding(
    pool_bytes: int = 1 << 20, cache_bytes: int = 1 << 20, max_queue_items: int = 64
) -> AsyncGenerator[Encoding]:
    transport = TransportConfig(pool_bytes=pool_bytes, max_wait_seconds=WAIT_SECONDS)
    exchange = InprocExchange()
    processor, encoder = CornerProcessor(), CornerEncoder()
    runner = EncoderRunner(encoder, EncoderConfig(max_queue_items=max_queue_items))
    producer = GatedProducer(InprocProducer(transport, exchange))
    reader = InprocConsumer(transport, exchange)
    store, signer, metrics = MemoryStore(cache_bytes), HandleSigner(SECRET), new_metrics()
    with ThreadPoolExecutor(1) as processing:
        async with preparer() as prepare:
            parts = EncodeParts(
                preparer=prepare,
                processor=processor,
                processing=processing,
                encoder=encoder,
                runner=runner,
                producer=producer,
                store=store,
            )
            stage = EncodeStage(parts, signer, transport, metrics, PEER)
            yield Encoding(stage, processor, encoder, runner, producer, reader, store, signer, metrics)
        for gate in (processor.gate, encoder.gate, producer.gate):
            gate.opened.set()
        runner.close()
        reader.close()
        producer.close()


def grid(height: int, width: int) -> Metadata:
    return (MetadataArray(name="image_grid_thw", shape=(1, 3), values=(1, height, width)),)


def asked(items: Sequence[MediaItem], deadline_ms: int = 20_000, tenant: str = "") -> ChatRequest:
    return ChatRequest(
        request_id="r1", model="m", messages=(), items=tuple(items), deadline_ms=deadline_ms, tenant=tenant
    )
