"""Services of a few lines that stand where stages do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence

from triptych.errors import TriptychError
from triptych.messages import (
    ChatEvent,
    ChatRequest,
    EmbeddingRef,
    EncodedItem,
    Finished,
    MediaItem,
    MetadataArray,
    StageTiming,
    TensorRef,
    TextDelta,
)

ANSWER: tuple[ChatEvent, ...] = (
    TextDelta(text="Hel", token_ids=(7,)),
    TextDelta(text="lo", token_ids=(8, 9)),
    Finished(
        finish_reason="stop",
        num_prompt_tokens=5,
        num_output_tokens=3,
        timings=(
            StageTiming(stage="prefill", milliseconds=2.0),
            StageTiming(stage="decode", milliseconds=4.0),
        ),
    ),
)


class ScriptedChat:
    """Yields its events and keeps the requests; an exception among the events is raised in its turn."""

    def __init__(self, events: Sequence[ChatEvent | Exception] = ANSWER) -> None:
        self.events = events
        self.requests: list[ChatRequest] = []

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        self.requests.append(request)
        for event in self.events:
            if isinstance(event, Exception):
                raise event
            yield event


class EndlessChat:
    """Yields `events`, then waits for ever. `entered` and `cancelled` tell other threads what happened."""

    def __init__(self, events: Sequence[ChatEvent] = ()) -> None:
        self.events = events
        self.entered = threading.Event()
        self.cancelled = threading.Event()

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        try:
            for event in self.events:
                yield event
            self.entered.set()
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()


class FakeEncode:
    """Answers every item with metadata that tell its place; items of one source share a key."""

    def __init__(self, fail: TriptychError | None = None) -> None:
        self.fail = fail
        self.requests: list[ChatRequest] = []

    async def encode(self, request: ChatRequest) -> tuple[EncodedItem, ...]:
        self.requests.append(request)
        if self.fail is not None:
            raise self.fail
        by_source: dict[str, list[int]] = {}
        for at, item in enumerate(request.items):
            by_source.setdefault(item.source or "", []).append(at)
        return tuple(encoded(request.items, tuple(places)) for places in by_source.values())


class EndlessEncode:
    def __init__(self) -> None:
        self.entered = threading.Event()
        self.cancelled = threading.Event()

    async def encode(self, request: ChatRequest) -> tuple[EncodedItem, ...]:
        self.entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        return ()


def encoded(items: Sequence[MediaItem], places: tuple[int, ...]) -> EncodedItem:
    first = items[places[0]]
    key = f"key-{first.modality}-{first.index}"
    tensor = TensorRef(
        key=key,
        namespace="test",
        dtype="float32",
        shape=(4, 8),
        size_bytes=128,
        transport="shm",
        address="@test",
        lease_id="lease",
        incarnation="first",
        generation=1,
    )
    metadata = (MetadataArray(name="image_grid_thw", shape=(1, 3), values=(1, 4, 4 + first.index)),)
    ref = EmbeddingRef(
        key=key, modality=first.modality, num_tokens=4, width=8, metadata=metadata, tensor=tensor
    )
    uuids = tuple(dict.fromkeys(items[place].uuid or "" for place in places if items[place].uuid))
    return EncodedItem(
        ref=ref,
        handle=f"signed:{key}",
        item_indices=places,
        uuids=uuids,
        peer_host="127.0.0.1",
        peer_port=9,
        timings=(
            StageTiming(stage="fetch", milliseconds=1.5),
            StageTiming(stage="process", milliseconds=2.0),
        ),
    )
