from __future__ import annotations

import numpy as np
import torch

from tests.language.tiny import greedy, prompt, request
from triptych.kv.layout import KvLayout, KvShape
from triptych.kv.pages import PagePool, PageTable
from triptych.language.scheduler import Scheduler
from triptych.language.sequence import Chunk, Sequence

SHAPE = KvShape(num_layers=1, num_kv_heads=1, key_dim=1, value_dim=1, dtype=torch.float32)


def new_pool(num_pages: int) -> PagePool:
    return PagePool(KvLayout(page_tokens=4, num_pages=num_pages, shape=SHAPE), torch.device("cpu"))


def waiting(pool: PagePool, name: str, length: int) -> Sequence:
    return Sequence(
        request=request(name, prompt(length, 0), greedy(100)),
        positions=np.arange(length)[None],
        delta=0,
        embeddings=(),
        stop_ids=frozenset(),
        max_tokens=length + 100,
        table=PageTable(pool),
        generator=None,
        ready_at=0.0,
    )


def forward(chunks: list[Chunk]) -> list[tuple[str, int]]:
    """Pretend to run them; (name, tokens) of each."""
    for chunk in chunks:
        samples = chunk.samples
        chunk.sequence.num_cached += chunk.num_tokens
        if samples:
            chunk.sequence.append(1, 0.0)
    return [(chunk.sequence.request.request_id, chunk.num_tokens) for chunk in chunks]


def test_decodes_go_before_chunks_and_both_share_the_budget() -> None:
    pool = new_pool(100)
    scheduler = Scheduler(pool, max_batch_tokens=10, max_running=8)
    scheduler.enqueue(waiting(pool, "a", 6))
    assert forward(scheduler.next_batch()) == [("a", 6)]
    scheduler.enqueue(waiting(pool, "b", 14))
    scheduler.enqueue(waiting(pool, "c", 7))
    assert forward(scheduler.next_batch()) == [("a", 1), ("b", 9)]
    assert forward(scheduler.next_batch()) == [("a", 1), ("b", 5), ("c", 4)]
    assert forward(scheduler.next_batch()) == [("a", 1), ("b", 1), ("c", 3)]


def test_first_come_is_first_admitted_even_if_a_later_one_would_fit() -> None:
    pool = new_pool(6)
    scheduler = Scheduler(pool, max_batch_tokens=64, max_running=8)
    for name, length in (("a", 12), ("b", 16), ("c", 1)):
        scheduler.enqueue(waiting(pool, name, length))
    assert forward(scheduler.next_batch()) == [("a", 12)]
    assert forward(scheduler.next_batch()) == [("a", 1)]


def test_no_more_run_than_allowed() -> None:
    pool = new_pool(50)
    scheduler = Scheduler(pool, max_batch_tokens=64, max_running=2)
    for name in "abc":
        scheduler.enqueue(waiting(pool, name, 3))
    assert forward(scheduler.next_batch()) == [("a", 3), ("b", 3)]
    scheduler.remove(scheduler.running[0])
    assert forward(scheduler.next_batch()) == [("b", 1), ("c", 3)]


def test_prefill_gets_on_although_decodes_could_fill_the_budget() -> None:
    pool = new_pool(50)
    scheduler = Scheduler(pool, max_batch_tokens=3, max_running=8)
    for name in "abcd":
        scheduler.enqueue(waiting(pool, name, 2))
    steps = [forward(scheduler.next_batch()) for _ in range(4)]
    assert steps[0] == [("a", 2), ("b", 1)]
    assert steps[1] == [("a", 1), ("b", 1), ("c", 1)]
    assert steps[2] == [("a", 1), ("b", 1), ("c", 1)]
    assert steps[3] == [("a", 1), ("b", 1), ("c", 1)]


def test_last_admitted_makes_room_and_waits_at_the_head() -> None:
    pool = new_pool(5)
    scheduler = Scheduler(pool, max_batch_tokens=64, max_running=8)
    for name, length in (("a", 7), ("b", 7), ("c", 1)):
        scheduler.enqueue(waiting(pool, name, length))
    assert forward(scheduler.next_batch()) == [("a", 7), ("b", 7)]
    assert forward(scheduler.next_batch()) == [("a", 1), ("b", 1)]
    assert forward(scheduler.next_batch()) == [("a", 1)]
    preempted = scheduler.waiting[0]
    assert preempted.request.request_id == "b"
    assert (preempted.table.num_pages, preempted.num_cached, preempted.num_uncached) == (0, 0, 9)
    assert [s.request.request_id for s in scheduler.waiting] == ["b", "c"]
    scheduler.remove(scheduler.running[0])
    assert forward(scheduler.next_batch())[0] == ("b", 9)


def test_removed_sequences_give_their_pages_back() -> None:
    pool = new_pool(9)
    scheduler = Scheduler(pool, max_batch_tokens=8, max_running=8)
    sequences = [waiting(pool, name, 12) for name in "abc"]
    for sequence in sequences:
        scheduler.enqueue(sequence)
    forward(scheduler.next_batch())
    for sequence in sequences:
        scheduler.remove(sequence)
    assert pool.num_used == 0
    assert not scheduler.busy
    assert scheduler.next_batch() == []
