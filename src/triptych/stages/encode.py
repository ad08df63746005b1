"""Encode: media items → published embeddings.

items ─prepare─▶ decoded ─process─▶ encoder input ─runner─▶ embedding ─publish─▶ slot
                    │                    │
                    └ cached: skip both  └ metadata known: the reply goes out, readers wait for the slot
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import msgspec
import torch

from triptych import telemetry
from triptych.config import TransportConfig
from triptych.embeddings.handle import HandleSigner
from triptych.embeddings.interface import CachedEmbedding, EmbeddingStore
from triptych.embeddings.key import embedding_key
from triptych.encoder.runner import EncodeJob, EncoderRunner
from triptych.errors import (
    DeadlineExceeded,
    InternalError,
    MediaError,
    MediaLimitExceeded,
    TriptychError,
    UnsupportedModality,
)
from triptych.media.types import PreparedItem, SkippedItem
from triptych.messages import (
    ChatRequest,
    EmbeddingRef,
    EncodedItem,
    MediaItem,
    Metadata,
    SignedHandle,
    StageTiming,
)
from triptych.models.interface import EncoderModel, MediaProcessor, ProcessedItem
from triptych.stages.prepare import Preparer
from triptych.stages.timings import merged
from triptych.telemetry import Metrics
from triptych.transport.interface import Producer


@dataclass(frozen=True, slots=True)
class Encoding:
    """One distinct embedding of a request; `item_indices` are the `ChatRequest.items` that use it.

    `job` is the encoder's work on it, None if it came from the cache.
    """

    ref: EmbeddingRef
    item_indices: tuple[int, ...]
    timings: tuple[StageTiming, ...]
    job: EncodeJob | None = None


@dataclass(frozen=True, slots=True)
class _Group:
    """Items of one request that share a key."""

    key: str
    first: PreparedItem | SkippedItem
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EncodeParts:
    """Everything an encode stage works with; `processing` runs processor calls, off the event loop."""

    preparer: Preparer
    processor: MediaProcessor
    processing: Executor
    encoder: EncoderModel
    runner: EncoderRunner
    producer: Producer
    store: EmbeddingStore


class EncodeStage:
    """Serves encode requests. One event loop; heavy work runs in the parts' threads."""

    def __init__(
        self,
        parts: EncodeParts,
        signer: HandleSigner,
        transport: TransportConfig,
        metrics: Metrics,
        peer: tuple[str, int],
    ) -> None:
        self._parts = parts
        self._signer = signer
        self._transport = transport
        self._metrics = metrics
        self._peer = peer

    async def encode(self, request: ChatRequest) -> tuple[EncodedItem, ...]:
        """Handles of all items, ready or pending.

        Raises:
            RequestError: an item is wrong; the first in request order is named.
            TryLater: queue or pool full, deadline passed.
        """
        encodings = await self.encode_items(request)
        return tuple(self._signed(encoding, request) for encoding in encodings)

    async def encode_items(self, request: ChatRequest) -> tuple[Encoding, ...]:
        """The same without signatures, for a language stage behind the same address."""
        deadline_seconds = request.deadline_ms / 1000
        self._check_modalities(request.items)
        try:
            async with asyncio.timeout(deadline_seconds):
                groups, cached = await self._prepare(request, deadline_seconds)
                fresh = [group for group in groups if group.key not in cached]
                encodings = await self._start(groups, cached, await self._process(fresh))
        except TimeoutError as error:
            raise DeadlineExceeded("media were not ready before the request's deadline") from error
        self._metrics.observe(merged(timing for encoding in encodings for timing in encoding.timings))
        return encodings

    def withdraw(self, encodings: Sequence[Encoding]) -> None:
        """Give back what nobody will read: idempotent."""
        for encoding in encodings:
            if encoding.job is not None:
                encoding.job.cancel()
            self._parts.producer.withdraw(encoding.ref.tensor)

    def _check_modalities(self, items: Sequence[MediaItem]) -> None:
        for item in items:
            if item.modality not in self._parts.processor.modalities:
                raise UnsupportedModality(f"{item.name}: this model takes no {item.modality}")
            if item.source is None:
                raise UnsupportedModality(f"{item.name}: an encode worker needs the media itself")

    async def _prepare(
        self, request: ChatRequest, deadline_seconds: float
    ) -> tuple[list[_Group], dict[str, CachedEmbedding]]:
        cached: dict[str, CachedEmbedding] = {}

        def wanted(item: MediaItem, digest: str) -> bool:
            key = self._key(item, digest, request.tenant)
            found = self._parts.store.get(key)
            if found is not None:
                cached[key] = found
            return found is None

        prepared = await self._parts.preparer.prepare(
            request.items, self._parts.processor.policy, deadline_seconds, wanted=wanted
        )
        by_key: dict[str, list[int]] = {}
        for index, one in enumerate(prepared):
            key = self._key(one.item, one.source_digest, request.tenant)
            by_key.setdefault(key, []).append(index)
            if key in cached:
                self._metrics.item_cached(one.item.modality)
        groups = [_Group(key, prepared[at[0]], tuple(at)) for key, at in by_key.items()]
        return groups, cached

    def _key(self, item: MediaItem, digest: str, tenant: str) -> str:
        policy = self._parts.processor.policy
        return embedding_key(
            item.modality, digest, policy.options_digest, self._parts.encoder.namespace, tenant
        )

    async def _process(self, groups: Sequence[_Group]) -> dict[str, tuple[ProcessedItem, StageTiming]]:
        loop = asyncio.get_running_loop()
        calls = [loop.run_in_executor(self._parts.processing, self._process_one, group) for group in groups]
        results = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return {
            group.key: result
            for group, result in zip(groups, results, strict=True)
            if not isinstance(result, BaseException)
        }

    def _process_one(self, group: _Group) -> tuple[ProcessedItem, StageTiming]:
        one = group.first
        assert isinstance(one, PreparedItem)
        begun = time.perf_counter()
        try:
            processed = self._parts.processor.process(one.item.modality, one.decoded)
        except MediaError as error:
            raise error.named(one.item.name) from error
        return processed, StageTiming(
            stage=telemetry.PROCESS, milliseconds=(time.perf_counter() - begun) * 1000
        )

    async def _start(
        self,
        groups: Sequence[_Group],
        cached: dict[str, CachedEmbedding],
        processed: dict[str, tuple[ProcessedItem, StageTiming]],
    ) -> tuple[Encoding, ...]:
        self._check_room(groups, cached, processed)
        encodings: list[Encoding] = []
        try:
            for group in groups:
                found = cached.get(group.key)
                if found is None:
                    encodings.append(self._start_fresh(group, *processed[group.key]))
                    continue
                ref = self._reserve(group, found.tensor.shape[1], found.num_tokens, found.metadata)
                # Known before the thread runs, so that a cancel meanwhile gives the slot back.
                encodings.append(Encoding(ref, group.indices, group.first.timings))
                publish = self._parts.producer.publish
                await asyncio.to_thread(publish, ref.tensor, found.tensor, _note(0.0))
        except BaseException:
            self.withdraw(encodings)
            raise
        return tuple(encodings)

    def _check_room(
        self,
        groups: Sequence[_Group],
        cached: dict[str, CachedEmbedding],
        processed: dict[str, tuple[ProcessedItem, StageTiming]],
    ) -> None:
        """What cannot fit into an empty pool must not be told to try again."""
        encoder, size_bytes = self._parts.encoder, 0
        capacity_bytes = self._parts.producer.capacity_bytes
        for group in groups:
            found, item = cached.get(group.key), group.first.item
            num_tokens = processed[group.key][0].num_tokens if found is None else found.num_tokens
            size_bytes += num_tokens * encoder.widths[item.modality] * encoder.dtype.itemsize
            if size_bytes > capacity_bytes:
                raise MediaLimitExceeded(
                    f"the request's embeddings up to here take {size_bytes} bytes, the pool holds "
                    f"{capacity_bytes}: send fewer or smaller media",
                    item=item.name,
                )

    def _start_fresh(self, group: _Group, processed: ProcessedItem, timing: StageTiming) -> Encoding:
        modality = group.first.item.modality
        width = self._parts.encoder.widths[modality]
        ref = self._reserve(group, width, processed.num_tokens, processed.metadata)
        submitted_at = time.perf_counter()

        def done(result: torch.Tensor | TriptychError, busy_seconds: float) -> None:
            if isinstance(result, TriptychError):
                self._parts.producer.fail(ref.tensor, result.code, result.message)
                return
            waited_ms = (time.perf_counter() - submitted_at) * 1000
            try:
                self._parts.producer.publish(ref.tensor, result, _note(waited_ms))
            except ValueError as error:
                # Other rows than the metadata announced: readers must not wait for them.
                self._parts.producer.fail(ref.tensor, InternalError.code, str(error))
                raise
            self._metrics.item_encoded(modality, ref.tensor.size_bytes)
            self._parts.store.put(
                group.key, CachedEmbedding(result, processed.metadata, processed.num_tokens, modality)
            )

        try:
            wanted = partial(self._parts.producer.is_wanted, ref.tensor)
            job = self._parts.runner.submit(processed, done, wanted)
        except TriptychError:
            self._parts.producer.withdraw(ref.tensor)
            raise
        return Encoding(ref, group.indices, (*group.first.timings, timing), job)

    def _reserve(self, group: _Group, width: int, num_tokens: int, metadata: Metadata) -> EmbeddingRef:
        encoder = self._parts.encoder
        tensor = self._parts.producer.reserve(
            group.key, encoder.namespace, encoder.dtype, (num_tokens, width)
        )
        return EmbeddingRef(
            key=group.key,
            modality=group.first.item.modality,
            num_tokens=num_tokens,
            width=width,
            metadata=metadata,
            tensor=tensor,
        )

    def _signed(self, encoding: Encoding, request: ChatRequest) -> EncodedItem:
        host, port = self._peer
        handle = SignedHandle(
            ref=encoding.ref,
            tenant=request.tenant,
            peer_host=host,
            peer_port=port,
            expires_unix_seconds=time.time()
            + self._transport.lease_seconds
            + self._transport.max_wait_seconds,
        )
        uuids = (request.items[index].uuid for index in encoding.item_indices)
        return EncodedItem(
            ref=encoding.ref,
            handle=self._signer.sign(handle),
            item_indices=encoding.item_indices,
            uuids=tuple(dict.fromkeys(uuid for uuid in uuids if uuid is not None)),
            peer_host=host,
            peer_port=port,
            timings=encoding.timings,
        )


def _note(encode_ms: float) -> bytes:
    return msgspec.msgpack.encode((StageTiming(stage=telemetry.ENCODE, milliseconds=encode_ms),))
