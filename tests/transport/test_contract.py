"""What every transport must carry and refuse. For shared memory the producer is a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import torch

from tests.transport.peers import (
    PATIENCE_SECONDS,
    Pair,
)
from tests.transport.samples import published, random_tensor, same_bits
from triptych.errors import (
    DeadlineExceeded,
    EmbeddingUnavailable,
    MediaInvalid,
    all_error_classes,
    error_from_code,
)
from triptych.messages import TensorRef

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
SOON_SECONDS = 0.05


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back_bit_for_bit(pair: Pair, dtype: torch.dtype) -> None:
    for width in (1, 7, 64, 4096):
        tensor = random_tensor(dtype, (3, width))
        fetched = pair.consumer.fetch(published(pair.peer, tensor), PATIENCE_SECONDS)
        assert same_bits(fetched.tensor, tensor)
        assert fetched.tensor.is_contiguous()


@pytest.mark.parametrize("shape", [(), (5,), (0, 64), (64, 0), (2, 3, 5, 7), (1, 1)], ids=str)
def test_every_shape_comes_back(pair: Pair, shape: tuple[int, ...]) -> None:
    tensor = random_tensor(torch.bfloat16, shape)

    fetched = pair.consumer.fetch(published(pair.peer, tensor), PATIENCE_SECONDS)

    assert same_bits(fetched.tensor, tensor)


def test_two_widths_at_once_do_not_mix(pair: Pair) -> None:
    tensors = [random_tensor(torch.float32, shape) for shape in ((9, 64), (4, 192), (9, 64))]
    refs = [pair.peer.reserve(tensor.dtype, tuple(tensor.shape)) for tensor in tensors]
    for ref, tensor in reversed(list(zip(refs, tensors, strict=True))):
        pair.peer.publish(ref, tensor)

    for ref, tensor in zip(refs, tensors, strict=True):
        assert same_bits(pair.consumer.fetch(ref, PATIENCE_SECONDS).tensor, tensor)


def test_note_travels_with_the_tensor(pair: Pair) -> None:
    note = bytes(range(256)) * 4

    fetched = pair.consumer.fetch(published(pair.peer, torch.zeros(2, 2), note), PATIENCE_SECONDS)

    assert fetched.note == note


def test_note_over_a_kibibyte_is_refused(pair: Pair) -> None:
    ref = pair.peer.reserve(torch.float32, (2, 2))

    with pytest.raises(ValueError, match="1024"):
        pair.peer.publish(ref, torch.zeros(2, 2), b"x" * 1025)


@pytest.mark.parametrize("tensor", [torch.zeros(2, 3), torch.zeros(2, 2, dtype=torch.float16)], ids=str)
def test_tensor_other_than_reserved_is_refused_and_the_right_one_still_fits(
    pair: Pair, tensor: torch.Tensor
) -> None:
    ref = pair.peer.reserve(torch.float32, (2, 2))

    with pytest.raises(ValueError, match="reserved float32"):
        pair.peer.publish(ref, tensor)

    pair.peer.publish(ref, torch.ones(2, 2))
    assert same_bits(pair.consumer.fetch(ref, PATIENCE_SECONDS).tensor, torch.ones(2, 2))


def test_fetched_tensor_is_the_readers_own(pair: Pair) -> None:
    ref = published(pair.peer, torch.zeros(4, 4))

    pair.consumer.fetch(ref, PATIENCE_SECONDS).tensor.fill_(7)

    assert same_bits(pair.consumer.fetch(ref, PATIENCE_SECONDS).tensor, torch.zeros(4, 4))


@pytest.mark.parametrize(
    "forge",
    [
        lambda ref: msgspec.structs.replace(ref, lease_id="0" * 32),
        lambda ref: msgspec.structs.replace(ref, key="another"),
        lambda ref: msgspec.structs.replace(ref, namespace="another"),
        lambda ref: msgspec.structs.replace(ref, incarnation="0" * 32),
        lambda ref: msgspec.structs.replace(ref, generation=ref.generation + 1),
        lambda ref: msgspec.structs.replace(ref, generation=ref.generation - 1),
        lambda ref: msgspec.structs.replace(ref, address="triptych-nobody"),
        lambda ref: msgspec.structs.replace(ref, shape=(4, 5)),
        lambda ref: msgspec.structs.replace(ref, dtype="float16"),
        lambda ref: msgspec.structs.replace(ref, dtype="object"),
    ],
    ids=["lease", "key", "namespace", "incarnation", "later", "stale", "address", "shape", "dtype", "object"],
)
def test_reference_that_does_not_fit_is_unavailable_and_harms_nothing(
    pair: Pair, forge: Callable[[TensorRef], TensorRef]
) -> None:
    ref = published(pair.peer, torch.ones(4, 4))

    with pytest.raises(EmbeddingUnavailable):
        pair.consumer.fetch(forge(ref), PATIENCE_SECONDS)

    assert same_bits(pair.consumer.fetch(ref, PATIENCE_SECONDS).tensor, torch.ones(4, 4))


def test_not_ready_in_time_then_ready(pair: Pair) -> None:
    ref = pair.peer.reserve(torch.float32, (4, 4))
    with pytest.raises(DeadlineExceeded):
        pair.consumer.fetch(ref, SOON_SECONDS)

    pair.peer.publish(ref, torch.ones(4, 4))

    assert same_bits(pair.consumer.fetch(ref, PATIENCE_SECONDS).tensor, torch.ones(4, 4))


def test_waiting_readers_are_woken(pair: Pair) -> None:
    ref = pair.peer.reserve(torch.float32, (4, 4))
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(pair.consumer.fetch, ref, PATIENCE_SECONDS) for _ in range(4)]
        pair.peer.publish(ref, torch.ones(4, 4), b"note")

        for fetched in [future.result(PATIENCE_SECONDS) for future in waiting]:
            assert same_bits(fetched.tensor, torch.ones(4, 4))
            assert fetched.note == b"note"


def test_reader_of_a_ready_tensor_did_not_wait_for_it(pair: Pair) -> None:
    ref = published(pair.peer, torch.ones(4, 4))

    assert pair.consumer.fetch(ref, PATIENCE_SECONDS).waited_seconds < 1


@pytest.mark.parametrize("code", sorted({cls.code for cls in all_error_classes()}))
def test_failure_arrives_as_the_error_that_the_producer_reported(pair: Pair, code: str) -> None:
    ref = pair.peer.reserve(torch.float32, (4, 4))
    expected = error_from_code(code, "it says why")

    pair.peer.fail(ref, code, "it says why")

    with pytest.raises(type(expected), match="it says why") as caught:
        pair.consumer.fetch(ref, PATIENCE_SECONDS)
    assert type(caught.value) is type(expected)
    assert pair.peer.usage().used_bytes == 0


def test_failure_wakes_waiting_readers(pair: Pair) -> None:
    ref = pair.peer.reserve(torch.float32, (4, 4))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pair.consumer.fetch, ref, PATIENCE_SECONDS)
        pair.peer.fail(ref, "media_invalid", "broken bytes")

        with pytest.raises(MediaInvalid, match="broken bytes"):
            waiting.result(PATIENCE_SECONDS)


def test_failing_is_idempotent_and_cannot_undo_a_publication(pair: Pair) -> None:
    failed = pair.peer.reserve(torch.float32, (4, 4))
    ready = published(pair.peer, torch.ones(4, 4))

    pair.peer.fail(failed, "media_invalid", "first")
    pair.peer.fail(failed, "internal", "second")
    pair.peer.publish(failed, torch.ones(4, 4))
    pair.peer.fail(ready, "internal", "too late")

    with pytest.raises(MediaInvalid, match="first"):
        pair.consumer.fetch(failed, PATIENCE_SECONDS)
    assert same_bits(pair.consumer.fetch(ready, PATIENCE_SECONDS).tensor, torch.ones(4, 4))
