"""The encoder's thread: batches across requests, cancels, fails narrowly, and ends."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from queue import Queue

import pytest
import torch

from triptych.config import EncoderConfig
from triptych.encoder.runner import EncoderRunner
from triptych.errors import InternalError, MediaInvalid, QueueFull, TriptychError, WorkerUnavailable
from triptych.messages import Modality
from triptych.models.interface import ProcessedItem

_SECONDS = 30.0


class _Encoder:
    """Yields each item's number; waits for `gate` first; refuses items whose number is in `bad`."""

    def __init__(self, bad: Mapping[int, Exception] | None = None) -> None:
        self.bad = bad or {}
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.batches: list[list[int]] = []

    @property
    def namespace(self) -> str:
        return "test"

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def widths(self) -> Mapping[Modality, int]:
        return {"image": 1}

    def encode(self, items: Sequence[ProcessedItem]) -> list[torch.Tensor]:
        self.entered.set()
        assert self.gate.wait(_SECONDS)
        numbers = [int(item.inputs["number"]) for item in items]
        self.batches.append(numbers)
        for number in numbers:
            if number in self.bad:
                raise self.bad[number]
        return [torch.full((item.num_tokens, 1), float(n)) for item, n in zip(items, numbers, strict=True)]


class _Results:
    """Collects what `done` was called with, by item number."""

    def __init__(self) -> None:
        self._queue: Queue[tuple[int, torch.Tensor | TriptychError, float]] = Queue()

    def take(self, count: int) -> dict[int, torch.Tensor | TriptychError]:
        got = [self._queue.get(timeout=_SECONDS) for _ in range(count)]
        assert all(seconds >= 0 for _, _, seconds in got)
        return {number: result for number, result, _ in got}

    def put(self, number: int, result: torch.Tensor | TriptychError, seconds: float) -> None:
        self._queue.put((number, result, seconds))

    @property
    def is_empty(self) -> bool:
        return self._queue.empty()


def _item(number: int, num_tokens: int = 10) -> ProcessedItem:
    inputs = {"number": torch.tensor(number)}
    return ProcessedItem(modality="image", inputs=inputs, metadata=(), num_tokens=num_tokens)


def _submit(runner: EncoderRunner, results: _Results, number: int, num_tokens: int = 10) -> None:
    runner.submit(_item(number, num_tokens), lambda result, seconds: results.put(number, result, seconds))


@contextmanager
def _running(encoder: _Encoder, config: EncoderConfig | None = None) -> Generator[EncoderRunner]:
    runner = EncoderRunner(encoder, config or EncoderConfig(batch_wait_seconds=0.0))
    try:
        yield runner
    finally:
        encoder.gate.set()
        runner.close()


def test_items_of_several_requests_share_a_batch() -> None:
    encoder, results = _Encoder(), _Results()
    with _running(encoder) as runner:
        _submit(runner, results, 0)
        assert encoder.entered.wait(_SECONDS)
        for number in (1, 2, 3):
            _submit(runner, results, number)
        encoder.gate.set()
        got = results.take(4)
    assert encoder.batches == [[0], [1, 2, 3]]
    assert all(isinstance(rows, torch.Tensor) and bool((rows == n).all()) for n, rows in got.items())


def test_batch_waits_for_company() -> None:
    encoder, results = _Encoder(), _Results()
    encoder.gate.set()
    config = EncoderConfig(batch_wait_seconds=_SECONDS, max_batch_tokens=30)
    with _running(encoder, config) as runner:
        for number in range(3):
            _submit(runner, results, number)
        results.take(3)
    assert encoder.batches == [[0, 1, 2]]


def test_batches_stay_below_the_token_limit() -> None:
    encoder, results = _Encoder(), _Results()
    with _running(encoder, EncoderConfig(batch_wait_seconds=0.0, max_batch_tokens=25)) as runner:
        _submit(runner, results, 0)
        assert encoder.entered.wait(_SECONDS)
        for number in range(1, 6):
            _submit(runner, results, number)
        encoder.gate.set()
        results.take(6)
    assert encoder.batches == [[0], [1, 2], [3, 4], [5]]


def test_cancelled_item_is_not_encoded() -> None:
    encoder, results = _Encoder(), _Results()
    with _running(encoder) as runner:
        _submit(runner, results, 0)
        assert encoder.entered.wait(_SECONDS)
        job = runner.submit(_item(1), lambda result, seconds: results.put(1, result, seconds))
        _submit(runner, results, 2)
        assert job.cancel()
        assert not job.cancel()
        encoder.gate.set()
        assert set(results.take(2)) == {0, 2}
    assert encoder.batches == [[0], [2]]
    assert results.is_empty


def test_item_that_nobody_waits_for_any_more_is_not_encoded() -> None:
    encoder, results = _Encoder(), _Results()
    wanted = [True]
    with _running(encoder) as runner:
        _submit(runner, results, 0)
        assert encoder.entered.wait(_SECONDS)
        runner.submit(_item(1), lambda result, seconds: results.put(1, result, seconds), lambda: wanted[0])
        _submit(runner, results, 2)
        wanted[0] = False
        encoder.gate.set()
        assert set(results.take(2)) == {0, 2}
    assert encoder.batches == [[0], [2]]
    assert results.is_empty


def test_item_in_the_encoder_cannot_be_cancelled() -> None:
    encoder, results = _Encoder(), _Results()
    with _running(encoder) as runner:
        job = runner.submit(_item(0), lambda result, seconds: results.put(0, result, seconds))
        assert encoder.entered.wait(_SECONDS)
        assert not job.cancel()
        encoder.gate.set()
        assert set(results.take(1)) == {0}


def test_full_queue_refuses() -> None:
    encoder, results = _Encoder(), _Results()
    with _running(encoder, EncoderConfig(batch_wait_seconds=0.0, max_queue_items=2)) as runner:
        _submit(runner, results, 0)
        assert encoder.entered.wait(_SECONDS)
        _submit(runner, results, 1)
        _submit(runner, results, 2)
        with pytest.raises(QueueFull):
            _submit(runner, results, 3)
        assert runner.load.num_queued == 2
        encoder.gate.set()
        assert set(results.take(3)) == {0, 1, 2}


@pytest.mark.parametrize("error", [MediaInvalid("bad item"), RuntimeError("out of memory")])
def test_bad_item_fails_alone(error: Exception) -> None:
    encoder, results = _Encoder({2: error}), _Results()
    with _running(encoder) as runner:
        _submit(runner, results, 0)
        assert encoder.entered.wait(_SECONDS)
        for number in (1, 2, 3):
            _submit(runner, results, number)
        encoder.gate.set()
        got = results.take(4)
        assert isinstance(got[2], MediaInvalid if isinstance(error, MediaInvalid) else InternalError)
        assert "out of memory" not in str(got[2])
        assert all(isinstance(got[number], torch.Tensor) for number in (0, 1, 3))
        _submit(runner, results, 4)
        assert isinstance(results.take(1)[4], torch.Tensor)
        assert runner.load.num_items == 4


def test_broken_callback_harms_nobody_else() -> None:
    encoder, results = _Encoder(), _Results()

    def broken(result: torch.Tensor | TriptychError, seconds: float) -> None:
        raise ValueError

    with _running(encoder) as runner:
        runner.submit(_item(0), broken)
        _submit(runner, results, 1)
        encoder.gate.set()
        assert isinstance(results.take(1)[1], torch.Tensor)


def test_close_fails_what_is_queued_and_ends_the_thread() -> None:
    encoder, results = _Encoder(), _Results()
    runner = EncoderRunner(encoder, EncoderConfig(batch_wait_seconds=0.0))
    _submit(runner, results, 0)
    assert encoder.entered.wait(_SECONDS)
    _submit(runner, results, 1)
    closing = threading.Thread(target=runner.close)
    closing.start()
    assert isinstance(results.take(1)[1], WorkerUnavailable)
    encoder.gate.set()
    closing.join(_SECONDS)
    assert isinstance(results.take(1)[0], torch.Tensor)
    runner.close()
    with pytest.raises(WorkerUnavailable):
        _submit(runner, results, 2)
    assert not any(thread.name == "encoder" and thread.is_alive() for thread in threading.enumerate())


def test_load_counts_work() -> None:
    encoder, results = _Encoder(), _Results()
    encoder.gate.set()
    with _running(encoder) as runner:
        for number in range(3):
            _submit(runner, results, number)
            results.take(1)
        load = runner.load
    assert (load.num_batches, load.num_items, load.num_queued) == (3, 3, 0)
    assert load.busy_seconds > 0
