"""The engine: requests in, one `StepOutput` a step out. No sockets; its only threads are the fetcher's."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import numpy as np
import torch

from triptych.config import LanguageConfig
from triptych.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidHandle,
    InvalidRequest,
    PromptTooLong,
    QueueFull,
    TriptychError,
)
from triptych.kv.layout import KvLayout
from triptych.kv.pages import PagePool, PageTable
from triptych.language.fetching import EmbeddingFetcher, FetchFailed, Loaded
from triptych.language.runner import Runner
from triptych.language.sampler import Sampled, SampleRow, new_generator, sample
from triptych.language.scheduler import Scheduler
from triptych.language.sequence import Chunk, PlacedRows, Sequence
from triptych.messages import (
    EngineReady,
    Failed,
    GenerateRequest,
    Metadata,
    Modality,
    PromptItem,
    StepOutput,
    TensorRef,
    TokenEvent,
)
from triptych.models.interface import LanguageModel
from triptych.transport.interface import Consumer

Clock = Callable[[], float]
"""Seconds, monotonic."""
PositionItem = tuple[Modality, Metadata, tuple[tuple[int, int], ...]]

logger = logging.getLogger(__name__)


class Engine:
    """Continuous batching over a paged KV cache. Not thread-safe: one loop adds, cancels and steps.

    A request is fetching (its embeddings are on the way), waiting or running; it leaves with a `TokenEvent`
    that has a finish reason, with `Failed`, or silently by `cancel`.
    """

    def __init__(
        self,
        model: LanguageModel,
        config: LanguageConfig,
        consumer: Consumer,
        device: torch.device | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        device = device or torch.device("cpu")
        self._clock = clock
        self.layout = KvLayout.within(config.kv_pool_bytes, config.kv_page_tokens, model.kv_shape)
        self.max_context_tokens = min(
            config.max_context_tokens, model.max_context_tokens, self.layout.num_tokens
        )
        self._model = model
        self._max_waiting = config.max_waiting
        self._pool = PagePool(self.layout, device)
        self._runner = Runner(model, self._pool, device)
        self._scheduler = Scheduler(self._pool, config.max_batch_tokens, config.max_running)
        self._fetcher = EmbeddingFetcher(
            consumer, config.num_fetch_threads, config.max_embedding_bytes, clock
        )
        self._fetching: dict[str, GenerateRequest] = {}
        self._sequences: dict[str, Sequence] = {}
        self._deadlines: dict[str, float] = {}

    @property
    def wakeup(self) -> threading.Event:
        """Set when fetched embeddings arrive; the loop that sleeps on it sets it for its own reasons too."""
        return self._fetcher.arrived

    @property
    def busy(self) -> bool:
        """Whether a step would compute something."""
        return self._scheduler.busy

    @property
    def idle(self) -> bool:
        """Whether no request is here at all."""
        return not self._sequences and not self._fetching

    @property
    def next_deadline(self) -> float | None:
        """Monotonic seconds at which a request may expire; a step is due then."""
        return min(self._deadlines.values(), default=None)

    def ready(self, load_report: str) -> EngineReady:
        return EngineReady(
            max_context_tokens=self.max_context_tokens,
            kv_page_tokens=self.layout.page_tokens,
            num_kv_pages=self.layout.num_pages,
            eos_token_ids=self._model.eos_token_ids,
            load_report=load_report,
        )

    def add(self, request: GenerateRequest) -> None:
        """Take a request over, its references included: they are released in any case.

        Raises:
            PromptTooLong: the prompt leaves no room for a token, or its embeddings exceed their bound.
            InvalidHandle: an item's runs, rows and reference do not agree.
            InvalidRequest: the prompt is empty, or a request of this id is here.
            QueueFull: too many requests wait.
            InternalError: the prompt's positions could not be computed.
        """
        try:
            self._check(request)
        except TriptychError:
            self._fetcher.release(item.ref.tensor for item in request.items)
            raise
        deadline = self._clock() + request.deadline_ms / 1000
        if request.items:
            self._fetcher.submit(request.request_id, request.items, deadline)
            self._fetching[request.request_id] = request
        else:
            self._enqueue(request, Loaded(request.request_id, {}, ()))
        self._deadlines[request.request_id] = deadline

    def release(self, refs: tuple[TensorRef, ...]) -> None:
        """Give back references of a request that was refused before it came here."""
        self._fetcher.release(refs)

    def cancel(self, request_id: str) -> None:
        """Free everything of a request. Unknown or ended: nothing happens."""
        self._deadlines.pop(request_id, None)
        self._fetching.pop(request_id, None)
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self._scheduler.remove(sequence)
        self._fetcher.forget(request_id)

    def step(self) -> StepOutput:
        """Expire, collect what was fetched, run one batch. Never raises for a request's sake."""
        events: list[TokenEvent | Failed] = [*self._expire(), *self._collect()]
        chunks = self._scheduler.next_batch()
        if chunks:
            events.extend(self._run(chunks))
        return StepOutput(
            events=tuple(events),
            num_running=len(self._scheduler.running),
            num_waiting=self._num_waiting,
            kv_usage=self._pool.usage,
        )

    def close(self) -> None:
        """Drop every request and end the fetch threads. Can be called twice."""
        for request_id in (*self._sequences, *self._fetching):
            self.cancel(request_id)
        self._fetcher.close()

    @property
    def _num_waiting(self) -> int:
        return len(self._scheduler.waiting) + len(self._fetching)

    def _check(self, request: GenerateRequest) -> None:
        if not request.token_ids:
            raise InvalidRequest("the prompt is empty")
        if request.request_id in self._sequences or request.request_id in self._fetching:
            raise InvalidRequest("a request of this id is being served")
        if len(request.token_ids) + 1 > self.max_context_tokens:
            raise PromptTooLong(
                f"the prompt has {len(request.token_ids)} tokens; prompt and output together"
                f" may have {self.max_context_tokens}"
            )
        for item in request.items:
            _check_item(item, len(request.token_ids))
            self._model.check_width(item.ref.modality, item.ref.width)
        if self._num_waiting >= self._max_waiting:
            raise QueueFull(f"{self._num_waiting} requests wait already")

    def _enqueue(self, request: GenerateRequest, loaded: Loaded) -> None:
        sequence = self._sequence(request, loaded)
        self._sequences[request.request_id] = sequence
        self._scheduler.enqueue(sequence)

    def _sequence(self, request: GenerateRequest, loaded: Loaded) -> Sequence:
        items: list[PositionItem] = [
            (item.ref.modality, item.ref.metadata, item.runs) for item in request.items
        ]
        try:
            positions = self._model.positions(request.token_ids, items)
        except TriptychError:
            raise
        except Exception as error:  # the engine's loop outlives any request
            raise InternalError("the positions of the prompt could not be computed") from error
        sampling = request.sampling
        eos = () if sampling.ignore_eos else self._model.eos_token_ids
        room = self.max_context_tokens - len(request.token_ids)
        return Sequence(
            request=request,
            positions=positions.ids.numpy(),
            delta=positions.delta,
            embeddings=tuple(
                PlacedRows(item.ref.modality, _targets(item), loaded.tensors[item.ref.tensor.lease_id])
                for item in request.items
            ),
            stop_ids=frozenset((*eos, *sampling.stop_token_ids)),
            max_tokens=len(request.token_ids) + min(room, sampling.max_tokens or room),
            table=PageTable(self._pool),
            generator=new_generator(sampling),
            ready_at=self._clock(),
            timings=loaded.timings,
        )

    def _expire(self) -> list[Failed]:
        now = self._clock()
        expired = [request_id for request_id, deadline in self._deadlines.items() if deadline <= now]
        return [
            self._fail(request_id, DeadlineExceeded("the request's deadline passed"))
            for request_id in expired
        ]

    def _collect(self) -> list[Failed]:
        failed: list[Failed] = []
        for outcome in self._fetcher.collect():
            request = self._fetching.pop(outcome.request_id)
            match outcome:
                case FetchFailed(error=error):
                    failed.append(self._fail(outcome.request_id, error))
                case Loaded():
                    try:
                        self._enqueue(request, outcome)
                    except TriptychError as error:
                        failed.append(self._fail(outcome.request_id, error))
        return failed

    def _run(self, chunks: list[Chunk]) -> list[TokenEvent | Failed]:
        now = self._clock()
        for chunk in chunks:
            if chunk.sequence.started_at is None:
                chunk.sequence.started_at = now
        try:
            due, logits = self._runner.run(chunks)
            sampled = sample(logits, [SampleRow(s.request.sampling, s.generator) for s in due]) if due else []
        except Exception as error:  # the engine's loop outlives any batch
            logger.exception("a batch of %d sequences failed", len(chunks))
            return [self._fail(chunk.sequence.request.request_id, _internal(error)) for chunk in chunks]
        now = self._clock()
        return [self._accept(sequence, token, now) for sequence, token in zip(due, sampled, strict=True)]

    def _accept(self, sequence: Sequence, sampled: Sampled | None, now: float) -> TokenEvent | Failed:
        request_id = sequence.request.request_id
        if sampled is None:
            return self._fail(request_id, InternalError("the model's output is not finite"))
        reason = sequence.append(sampled.token_id, now)
        timings = sequence.all_timings(now) if reason else ()
        if reason:
            self.cancel(request_id)
        return TokenEvent(
            request_id=request_id,
            token_id=sampled.token_id,
            logprobs=sampled.logprobs,
            finish_reason=reason,
            timings=timings,
        )

    def _fail(self, request_id: str, error: TriptychError) -> Failed:
        self.cancel(request_id)
        return failed_event(request_id, error)


def failed_event(request_id: str, error: TriptychError) -> Failed:
    """How an error of one request is told."""
    return Failed(request_id=request_id, code=error.code, message=error.message, retryable=error.retryable)


def _internal(error: Exception) -> TriptychError:
    return error if isinstance(error, TriptychError) else InternalError("the model's forward pass failed")


def _targets(item: PromptItem) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.concatenate([np.arange(offset, offset + length) for offset, length in item.runs])


def _check_item(item: PromptItem, num_prompt: int) -> None:
    end = 0
    for offset, length in item.runs:
        if length < 1 or offset < end or offset + length > num_prompt:
            raise InvalidHandle(f"{item.name}: its places do not lie in the prompt in order")
        end = offset + length
    if sum(length for _, length in item.runs) != item.ref.num_tokens or not item.runs:
        raise InvalidHandle(f"{item.name}: its places and its number of embedding rows differ")
    if item.ref.tensor.shape != (item.ref.num_tokens, item.ref.width):
        raise InvalidHandle(f"{item.name}: its tensor is not [num_tokens, width]")
