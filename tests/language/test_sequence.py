from __future__ import annotations

from tests.language.test_scheduler import new_pool, waiting
from triptych.language.sequence import Chunk
from triptych.telemetry import DECODE, PREFILL, QUEUE


def test_stop_token_wins_over_the_length() -> None:
    sequence = waiting(new_pool(9), "a", 5)
    sequence.stop_ids = frozenset({9})
    sequence.max_tokens = 7
    assert sequence.append(3, 1.0) is None
    assert sequence.append(9, 1.0) == "stop"


def test_last_allowed_token_ends_by_length() -> None:
    sequence = waiting(new_pool(9), "a", 5)
    sequence.max_tokens = 7
    assert [sequence.append(1, 0.0), sequence.append(1, 0.0)] == [None, "length"]


def test_forgotten_cache_keeps_tokens() -> None:
    pool = new_pool(9)
    sequence = waiting(pool, "a", 5)
    assert sequence.table.grow(6)
    sequence.num_cached = 5
    sequence.append(1, 0.0)
    sequence.forget_cache()
    assert (sequence.num_uncached, pool.num_used) == (6, 0)


def test_chunk_samples_only_with_the_last_uncached_token() -> None:
    sequence = waiting(new_pool(9), "a", 5)
    assert [Chunk(sequence, n).samples for n in (1, 4, 5)] == [False, False, True]
    sequence.num_cached = 4
    assert Chunk(sequence, 1).decodes
    sequence.num_cached = 3
    assert not Chunk(sequence, 1).decodes


def test_timings_split_the_time_since_it_was_ready() -> None:
    sequence = waiting(new_pool(9), "a", 5)
    sequence.ready_at, sequence.started_at = 1.0, 2.0
    sequence.append(1, 5.0)
    sequence.append(1, 9.0)
    spent = {timing.stage: timing.milliseconds for timing in sequence.all_timings(9.0)}
    assert spent == {QUEUE: 1000, PREFILL: 3000, DECODE: 4000}


def test_sequences_are_told_apart_by_identity() -> None:
    pool = new_pool(9)
    assert waiting(pool, "a", 5) != waiting(pool, "a", 5)
