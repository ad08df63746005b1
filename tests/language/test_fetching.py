from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.language.shelf import Shelf, new_shelf, placed, rows
from triptych.errors import PromptTooLong
from triptych.language.fetching import EmbeddingFetcher, FetchFailed, Loaded
from triptych.messages import TensorRef
from triptych.telemetry import TRANSFER
from triptych.transport.interface import Consumer, Fetched

SECONDS = 30.0


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    with new_shelf() as shelf:
        yield shelf


def new_fetcher(consumer: Consumer, *, num_threads: int = 4, max_bytes: int = 1 << 20) -> EmbeddingFetcher:
    return EmbeddingFetcher(consumer, num_threads, max_bytes)


def submit(fetcher: EmbeddingFetcher, request_id: str, *refs: TensorRef) -> None:
    items = tuple(placed(ref, (0, ref.shape[0])) for ref in refs)
    fetcher.submit(request_id, items, fetcher.clock() + SECONDS)


def outcomes(fetcher: EmbeddingFetcher, count: int) -> list[Loaded | FetchFailed]:
    found = fetcher.collect()
    while len(found) < count:
        assert fetcher.arrived.wait(SECONDS)
        fetcher.arrived.clear()
        found += fetcher.collect()
    return found


def test_request_is_loaded_when_its_last_item_is_there(shelf: Shelf) -> None:
    fetcher = new_fetcher(shelf.consumer)
    first, second = shelf.pending(3), shelf.pending(5)
    submit(fetcher, "a", first, second)
    shelf.publish(first, encode_ms=4.0)
    shelf.publish(second, encode_ms=6.0)
    (loaded,) = outcomes(fetcher, 1)
    assert isinstance(loaded, Loaded)
    assert torch.equal(loaded.tensors[first.lease_id], rows(3))
    assert torch.equal(loaded.tensors[second.lease_id], rows(5))
    assert sorted(t.milliseconds for t in loaded.timings if t.stage == "encode") == [4.0, 6.0]
    assert [t.stage for t in loaded.timings].count(TRANSFER) == 1
    fetcher.close()
    assert shelf.num_references == 0


def test_references_are_released_as_soon_as_copied(shelf: Shelf) -> None:
    fetcher = new_fetcher(shelf.consumer)
    submit(fetcher, "a", shelf.ready(3))
    outcomes(fetcher, 1)
    assert shelf.num_references == 0
    fetcher.close()


def test_first_failure_ends_the_request_and_releases_the_rest(shelf: Shelf) -> None:
    fetcher = new_fetcher(shelf.consumer)
    bad, never, other = shelf.pending(3), shelf.pending(4), shelf.ready(2)
    submit(fetcher, "a", bad, never)
    submit(fetcher, "b", other)
    shelf.producer.fail(bad, "media_invalid", "image 1: broken")
    by_id = {outcome.request_id: outcome for outcome in outcomes(fetcher, 2)}
    failed = by_id["a"]
    assert isinstance(failed, FetchFailed)
    assert (failed.error.code, failed.error.message) == ("media_invalid", "image 1: broken")
    assert isinstance(by_id["b"], Loaded)
    fetcher.forget("b")
    fetcher.close()
    assert (shelf.num_references, fetcher.held_bytes) == (0, 0)


def test_lost_embedding_is_reported_as_unavailable(shelf: Shelf) -> None:
    fetcher = new_fetcher(shelf.consumer)
    ref = shelf.ready(3)
    shelf.producer.withdraw(ref)
    submit(fetcher, "a", ref)
    (failed,) = outcomes(fetcher, 1)
    assert isinstance(failed, FetchFailed)
    assert failed.error.code == "embedding_unavailable"
    assert failed.error.message.startswith("image 1: ")
    fetcher.close()


def test_over_the_byte_bound_requests_wait_their_turn(shelf: Shelf) -> None:
    first, second, small = shelf.ready(8), shelf.ready(8), shelf.ready(1)
    fetcher = new_fetcher(shelf.consumer, max_bytes=first.size_bytes + small.size_bytes)
    submit(fetcher, "a", first)
    submit(fetcher, "b", second)
    submit(fetcher, "c", small)
    assert [outcome.request_id for outcome in outcomes(fetcher, 1)] == ["a"]
    assert fetcher.collect() == []
    assert fetcher.held_bytes == first.size_bytes
    fetcher.forget("a")
    assert {outcome.request_id for outcome in outcomes(fetcher, 2)} == {"b", "c"}
    fetcher.close()
    assert (shelf.num_references, fetcher.held_bytes) == (0, 0)


def test_request_over_the_bound_on_its_own_is_refused(shelf: Shelf) -> None:
    ref = shelf.ready(8)
    fetcher = new_fetcher(shelf.consumer, max_bytes=ref.size_bytes - 1)
    with pytest.raises(PromptTooLong, match="embeddings take"):
        submit(fetcher, "a", ref)
    fetcher.close()
    assert shelf.num_references == 0


def test_cancelled_fetch_that_waits_for_its_producer_frees_the_thread(shelf: Shelf) -> None:
    fetcher = new_fetcher(shelf.consumer, num_threads=1)
    submit(fetcher, "stuck", shelf.pending(3))
    submit(fetcher, "next", shelf.ready(2))
    fetcher.forget("stuck")
    (loaded,) = outcomes(fetcher, 1)
    assert loaded.request_id == "next"
    fetcher.forget("next")
    assert fetcher.held_bytes == 0
    fetcher.close()
    assert shelf.num_references == 0


def test_closing_twice_is_harmless(shelf: Shelf) -> None:
    fetcher = new_fetcher(shelf.consumer)
    submit(fetcher, "a", shelf.pending(3))
    fetcher.close()
    fetcher.close()
    assert (shelf.num_references, fetcher.held_bytes) == (0, 0)


class Odd:
    """A consumer that delivers what was not announced, or breaks."""

    def __init__(self, tensor: torch.Tensor | None, note: bytes = b"") -> None:
        self._tensor = tensor
        self._note = note

    def fetch(self, ref: TensorRef, deadline_seconds: float) -> Fetched:
        if self._tensor is None:
            raise OSError("wires crossed")
        return Fetched(tensor=self._tensor, note=self._note, waited_seconds=0.0)

    def release(self, ref: TensorRef) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("tensor", "code"),
    [
        (rows(4), "embedding_unavailable"),
        (rows(3).to(torch.float16), "embedding_unavailable"),
        (None, "internal"),
    ],
)
def test_what_was_not_announced_fails_the_request(
    shelf: Shelf, tensor: torch.Tensor | None, code: str
) -> None:
    fetcher = new_fetcher(Odd(tensor))
    submit(fetcher, "a", shelf.pending(3))
    (failed,) = outcomes(fetcher, 1)
    assert isinstance(failed, FetchFailed)
    assert failed.error.code == code
    assert "wires" not in failed.error.message
    fetcher.close()


def test_unreadable_note_costs_only_the_timings(shelf: Shelf) -> None:
    fetcher = new_fetcher(Odd(rows(3), note=b"\xc1"))
    submit(fetcher, "a", shelf.pending(3))
    (loaded,) = outcomes(fetcher, 1)
    assert isinstance(loaded, Loaded)
    assert [timing.stage for timing in loaded.timings] == [TRANSFER]
    fetcher.close()
