"""Gets the embeddings of requests from where they were made, before the requests are scheduled.

submit ──▶ waits for its share of the bytes ──▶ all its items are fetched together ──▶ Loaded
                                                          └── the first failure ──▶ FetchFailed
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec
import torch

from triptych.errors import (
    DeadlineExceeded,
    EmbeddingUnavailable,
    InternalError,
    PromptTooLong,
    TriptychError,
    error_from_code,
)
from triptych.messages import PromptItem, StageTiming, TensorRef
from triptych.telemetry import TRANSFER
from triptych.transport.interface import Consumer, Fetched

Clock = Callable[[], float]
"""Seconds, monotonic."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Everything a request needs is here: tensors [num_tokens, width] by lease id, on the CPU."""

    request_id: str
    tensors: Mapping[str, torch.Tensor]
    timings: tuple[StageTiming, ...]
    """What the producers spent, and the transfer."""


@dataclass(frozen=True, slots=True)
class FetchFailed:
    request_id: str
    error: TriptychError


@dataclass(slots=True, eq=False)
class _Job:
    """One request. `unreleased` is emptied from two threads: whoever pops a reference releases it."""

    request_id: str
    refs: dict[str, TensorRef]
    names: dict[str, str]
    """What users call the item, by lease id."""
    deadline: float
    submitted_at: float
    unreleased: dict[str, TensorRef] = field(init=False)
    in_flight: int = 0
    tensors: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    producer_timings: list[StageTiming] = field(default_factory=list[StageTiming])
    waited_seconds: float = 0.0
    ended: bool = False

    def __post_init__(self) -> None:
        self.unreleased = dict(self.refs)

    @property
    def size_bytes(self) -> int:
        return sum(ref.size_bytes for ref in self.refs.values())


@dataclass(frozen=True, slots=True)
class _Arrival:
    job: _Job
    lease_id: str
    result: Future[Fetched]


class EmbeddingFetcher:
    """Fetches on its own threads; everything else is called by one owner, the engine's loop.

    `arrived` is set whenever `collect` has something new. A job's bytes count from its start until `forget`.
    """

    def __init__(
        self, consumer: Consumer, num_threads: int, max_bytes: int, clock: Clock = time.monotonic
    ) -> None:
        self.clock = clock
        self.arrived = threading.Event()
        self._consumer = consumer
        self._max_bytes = max_bytes
        self._held_bytes = 0
        self._jobs: dict[str, _Job] = {}
        self._waiting: deque[_Job] = deque()
        self._arrivals: queue.SimpleQueue[_Arrival] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(num_threads, "fetch")
        # Apart from the fetches: releasing the references of a cancelled request is what ends its fetches.
        self._release_thread = ThreadPoolExecutor(1, "release")

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def submit(self, request_id: str, items: tuple[PromptItem, ...], deadline: float) -> None:
        """Take over the references of a request; `deadline` is monotonic.

        Raises:
            PromptTooLong: they exceed `max_bytes` on their own. The references are released.
        """
        refs = {item.ref.tensor.lease_id: item.ref.tensor for item in items}
        names = {item.ref.tensor.lease_id: item.name for item in items}
        job = _Job(request_id, refs, names, deadline, submitted_at=self.clock())
        if job.size_bytes > self._max_bytes:
            self._release_all(job)
            raise PromptTooLong(
                f"the media embeddings take {job.size_bytes} bytes; at most {self._max_bytes} are held"
            )
        self._jobs[request_id] = job
        self._waiting.append(job)
        self._start_waiting()

    def release(self, refs: Iterable[TensorRef]) -> None:
        """Release the references of a request that is not submitted."""
        for ref in {ref.lease_id: ref for ref in refs}.values():
            self._release_thread.submit(self._consumer.release, ref)

    def collect(self) -> list[Loaded | FetchFailed]:
        """What was completed or failed since the last call. Never waits."""
        done: list[Loaded | FetchFailed] = []
        while True:
            try:
                arrival = self._arrivals.get_nowait()
            except queue.Empty:
                break
            arrival.job.in_flight -= 1
            if not arrival.job.ended:
                done.extend(self._take(arrival))
            elif arrival.job.in_flight == 0:
                self._held_bytes -= arrival.job.size_bytes
        self._start_waiting()
        return done

    def forget(self, request_id: str) -> None:
        """The request ended or was cancelled: free what is held for it. Idempotent."""
        job = self._jobs.pop(request_id, None)
        if job is None:
            return
        job.ended = True
        job.tensors.clear()
        if job in self._waiting:
            self._waiting.remove(job)
        elif job.in_flight == 0:
            self._held_bytes -= job.size_bytes
        self._release_all(job)
        self._start_waiting()

    def close(self) -> None:
        """Forget everything and end the threads. Can be called twice."""
        for request_id in tuple(self._jobs):
            self.forget(request_id)
        self._release_thread.shutdown(wait=True)
        self._consumer.close()
        self._threads.shutdown(wait=True, cancel_futures=True)
        self.collect()

    def _start_waiting(self) -> None:
        while self._waiting and self._held_bytes + self._waiting[0].size_bytes <= self._max_bytes:
            job = self._waiting.popleft()
            self._held_bytes += job.size_bytes
            job.in_flight = len(job.refs)
            for lease_id, ref in job.refs.items():
                future = self._threads.submit(self._fetch, job, ref)
                future.add_done_callback(
                    lambda result, lease_id=lease_id, job=job: self._land(job, lease_id, result)
                )

    def _land(self, job: _Job, lease_id: str, result: Future[Fetched]) -> None:
        self._arrivals.put(_Arrival(job, lease_id, result))
        self.arrived.set()

    def _fetch(self, job: _Job, ref: TensorRef) -> Fetched:
        """On a fetch thread."""
        try:
            remaining = job.deadline - self.clock()
            if job.ended or remaining <= 0:
                raise DeadlineExceeded("the request ended before its embeddings were fetched")
            fetched = self._consumer.fetch(ref, remaining)
            _check(ref, fetched.tensor)
            return fetched
        finally:
            if job.unreleased.pop(ref.lease_id, None) is not None:
                self._consumer.release(ref)

    def _take(self, arrival: _Arrival) -> list[Loaded | FetchFailed]:
        job, failure = arrival.job, arrival.result.exception()
        if failure is not None:
            self.forget(job.request_id)
            error = _named(failure, job.names[arrival.lease_id])
            return [FetchFailed(job.request_id, error)]
        fetched = arrival.result.result()
        job.tensors[arrival.lease_id] = fetched.tensor
        job.producer_timings.extend(_timings(fetched.note))
        job.waited_seconds = max(job.waited_seconds, fetched.waited_seconds)
        if job.in_flight > 0:
            return []
        seconds = max(0.0, self.clock() - job.submitted_at - job.waited_seconds)
        transfer = StageTiming(stage=TRANSFER, milliseconds=seconds * 1000)
        return [Loaded(job.request_id, job.tensors, (*job.producer_timings, transfer))]

    def _release_all(self, job: _Job) -> None:
        for lease_id in job.refs:
            ref = job.unreleased.pop(lease_id, None)
            if ref is not None:
                self._release_thread.submit(self._consumer.release, ref)


def _check(ref: TensorRef, tensor: torch.Tensor) -> None:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tuple(tensor.shape) != ref.shape or dtype != ref.dtype.removeprefix("torch."):
        raise EmbeddingUnavailable(
            f"an embedding arrived as {dtype} {tuple(tensor.shape)}, announced was {ref.dtype} {ref.shape}"
        )


def _named(failure: BaseException, name: str) -> TriptychError:
    """The same kind of error, about the item that users know."""
    if isinstance(failure, TriptychError):
        told = failure.message if failure.message.startswith(name) else f"{name}: {failure.message}"
        error = error_from_code(failure.code, told)
    else:
        error = InternalError(f"{name}: fetching its embedding failed")
    error.__cause__ = failure
    return error


def _timings(note: bytes) -> tuple[StageTiming, ...]:
    """What the producer attached; a note that we cannot read costs only the timings."""
    if not note:
        return ()
    try:
        return msgspec.msgpack.decode(note, type=tuple[StageTiming, ...])
    except msgspec.MsgspecError:
        return ()
