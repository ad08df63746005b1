"""The threads that run the encoder over the items of all requests, batch by batch."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from triptych.config import EncoderConfig
from triptych.encoder.batch import batch_size, is_full
from triptych.errors import InternalError, QueueFull, TriptychError, WorkerUnavailable
from triptych.models.interface import EncoderModel, ProcessedItem

_log = logging.getLogger(__name__)
_CLOSE_SECONDS = 30.0

Done = Callable[[torch.Tensor | TriptychError, float], None]
"""Called once from an encoder thread: rows or error, and how long the forward pass took, in seconds."""


Wanted = Callable[[], bool]
"""Asked just before an item is encoded; must not wait."""


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    item: ProcessedItem
    done: Done
    wanted: Wanted
    submitted_at: float


@dataclass(frozen=True, slots=True)
class EncodeJob:
    """An item in the encoder's queue."""

    _runner: EncoderRunner
    _entry: _Entry

    def cancel(self) -> bool:
        """Take the item out of the queue; False if its batch has started. Idempotent.

        `done` is not called for an item that was taken out.
        """
        return self._runner.take_out(self._entry)


@dataclass(frozen=True, slots=True)
class EncoderLoad:
    """Counters since the start, and the present queue. `num_items` were encoded; failed ones do not count."""

    busy_seconds: float
    num_batches: int
    num_items: int
    num_queued: int


class EncoderRunner:
    """Owns the encoder's lanes: `num_lanes` threads, each with a forward pass of its own under way.

    On a CPU, lanes of one core each keep all cores busy without waiting for each other; a device needs one.
    `submit`, `load` and `close` may be called from any thread. A batch that fails is tried again item by
    item, so that one bad item fails alone.
    """

    def __init__(self, model: EncoderModel, config: EncoderConfig) -> None:
        self._model = model
        self._config = config
        self._queue: list[_Entry] = []
        self._changed = threading.Condition()
        self._closing = False
        self._busy_seconds = 0.0
        self._num_batches = 0
        self._num_items = 0
        self._lanes = [
            threading.Thread(target=self._run, name=f"encoder {lane + 1}", daemon=True)
            for lane in range(max(1, config.num_lanes))
        ]
        for lane in self._lanes:
            lane.start()

    def submit(self, item: ProcessedItem, done: Done, wanted: Wanted = _always) -> EncodeJob:
        """Queue `item`. If `wanted` says no when its turn comes it is dropped, and `done` is not called.

        Raises:
            QueueFull: `max_queue_items` are waiting.
            WorkerUnavailable: the runner is closed.
        """
        entry = _Entry(item, done, wanted, time.monotonic())
        with self._changed:
            if self._closing:
                raise WorkerUnavailable("the encoder is shutting down")
            if len(self._queue) >= self._config.max_queue_items:
                raise QueueFull("too many items wait for the encoder")
            self._queue.append(entry)
            self._changed.notify()
        return EncodeJob(self, entry)

    def take_out(self, entry: _Entry) -> bool:
        """See `EncodeJob.cancel`."""
        with self._changed:
            if entry not in self._queue:
                return False
            self._queue.remove(entry)
            return True

    @property
    def load(self) -> EncoderLoad:
        with self._changed:
            return EncoderLoad(self._busy_seconds, self._num_batches, self._num_items, len(self._queue))

    def close(self) -> None:
        """Let running batches finish, fail what is queued, end the threads. Can be called twice."""
        with self._changed:
            self._closing = True
            left, self._queue = self._queue, []
            self._changed.notify_all()
        for entry in left:
            _finish(entry, WorkerUnavailable("the encoder is shutting down"), 0.0)
        deadline = time.monotonic() + _CLOSE_SECONDS
        for lane in self._lanes:
            lane.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while batch := self._next_batch():
            self._encode(batch)

    def _next_batch(self) -> list[_Entry]:
        """Wait for items, then for company; empty at the end."""
        with self._changed:
            while not self._closing:
                # Requests that ended while their items waited here leave no work behind.
                self._queue = [entry for entry in self._queue if entry.wanted()]
                waiting = [entry.item.num_tokens for entry in self._queue]
                if not waiting:
                    self._changed.wait()
                    continue
                patience = self._queue[0].submitted_at + self._config.batch_wait_seconds - time.monotonic()
                if patience > 0 and not is_full(waiting, self._config.max_batch_tokens):
                    self._changed.wait(patience)
                    continue
                count = batch_size(waiting, self._config.max_batch_tokens)
                batch, self._queue = self._queue[:count], self._queue[count:]
                return batch
        return []

    def _encode(self, batch: Sequence[_Entry]) -> None:
        started = time.perf_counter()
        results = self._try(batch)
        busy_seconds = time.perf_counter() - started
        with self._changed:
            self._busy_seconds += busy_seconds
            self._num_batches += 1
            self._num_items += len(batch) if isinstance(results, list) else 0
        if isinstance(results, list):
            for entry, rows in zip(batch, results, strict=True):
                _finish(entry, rows, busy_seconds)
        elif len(batch) == 1:
            _finish(batch[0], results, busy_seconds)
        else:
            for entry in batch:
                self._encode([entry])

    def _try(self, batch: Sequence[_Entry]) -> list[torch.Tensor] | TriptychError:
        try:
            return self._model.encode([entry.item for entry in batch])
        except TriptychError as error:
            return error
        except Exception as error:  # noqa: BLE001  the thread serves every request: it outlives any batch
            _log.exception("the encoder failed on a batch of %d", len(batch))
            failure = InternalError("the encoder failed")
            failure.__cause__ = error
            return failure


def _finish(entry: _Entry, result: torch.Tensor | TriptychError, busy_seconds: float) -> None:
    try:
        entry.done(result, busy_seconds)
    except Exception:  # noqa: BLE001  as above: a broken callback harms its own request only
        _log.exception("delivering an embedding failed")
