from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.transport.producer_program import SteppedClock
from triptych.config import TransportConfig
from triptych.errors import QueueFull
from triptych.transport import pool as pool_module
from triptych.transport.pool import SlotPool
from triptych.transport.slots import SlotState, claim_of
from triptych.transport.tensors import Bytes

CONFIG = TransportConfig(pool_bytes=4096)


def make_pool(changes: list[str]) -> SlotPool:
    return SlotPool(
        CONFIG,
        np.zeros(CONFIG.pool_bytes, np.uint8),
        transport="inproc",
        address="here",
        clock=SteppedClock(),
        changed=lambda: changes.append("changed"),
    )


def test_reference_says_what_and_where() -> None:
    ref = make_pool([]).reserve("key", "ns", torch.bfloat16, (3, 8))

    assert (ref.key, ref.namespace, ref.dtype, ref.shape, ref.size_bytes) == (
        "key",
        "ns",
        "bfloat16",
        (3, 8),
        48,
    )
    assert (ref.transport, ref.address) == ("inproc", "here")


def test_every_change_is_told_but_a_reservation() -> None:
    changes: list[str] = []
    pool = make_pool(changes)
    refs = [pool.reserve("key", "ns", torch.float32, (2,)) for _ in range(3)]
    assert changes == []

    pool.publish(refs[0], torch.zeros(2), b"")
    pool.fail(refs[1], "internal", "")
    pool.withdraw(refs[2])

    assert len(changes) == 3


def test_publication_that_breaks_halfway_is_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(memory: Bytes, tensor: torch.Tensor) -> None:
        raise RuntimeError("device lost")

    pool = make_pool([])
    ref = pool.reserve("key", "ns", torch.float32, (2,))
    monkeypatch.setattr(pool_module, "copy_in", breaks)

    with pytest.raises(RuntimeError, match="device lost"):
        pool.publish(ref, torch.zeros(2), b"")

    usage = pool.usage()
    assert (usage.used_bytes, usage.num_slots, usage.num_held) == (0, 0, 0)


def test_long_failure_text_is_cut() -> None:
    pool = make_pool([])
    ref = pool.reserve("key", "ns", torch.float32, (2,))

    pool.fail(ref, "internal", "x" * 100_000)

    slot = pool.table.find(claim_of(ref))
    assert slot.state is SlotState.FAILED
    assert len(slot.failure[1]) == pool_module.MAX_FAILURE_CHARACTERS


def test_closed_pool_takes_nothing_and_ignores_publications() -> None:
    pool = make_pool([])
    ref = pool.reserve("key", "ns", torch.float32, (2,))

    pool.close()
    pool.close()

    pool.publish(ref, torch.zeros(2), b"")
    with pytest.raises(QueueFull, match="closed"):
        pool.reserve("key", "ns", torch.float32, (2,))
    assert pool.usage().used_bytes == 0
