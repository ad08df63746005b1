from __future__ import annotations

import threading

import torch

from triptych.embeddings.interface import CachedEmbedding, EmbeddingStore
from triptych.embeddings.memory import MemoryStore
from triptych.messages import MetadataArray

ROW_BYTES = 16


def embedding(rows: int, value: float = 0.0) -> CachedEmbedding:
    return CachedEmbedding(
        tensor=torch.full((rows, ROW_BYTES // 4), value),
        metadata=(MetadataArray(name="image_grid_thw", shape=(1, 3), values=(1, 2, rows)),),
        num_tokens=rows,
        modality="image",
    )


def test_what_was_put_comes_back_with_its_metadata() -> None:
    store: EmbeddingStore = MemoryStore(10 * ROW_BYTES)
    kept = embedding(3, 1.5)

    store.put("a", kept)

    assert store.get("a") is kept


def test_unknown_key_is_a_counted_miss() -> None:
    store = MemoryStore(10 * ROW_BYTES)
    store.put("a", embedding(1))

    assert store.get("b") is None
    assert store.get("a") is not None
    assert (store.usage().num_hits, store.usage().num_misses) == (1, 1)


def test_least_recently_used_entry_makes_room() -> None:
    store = MemoryStore(10 * ROW_BYTES)
    for key in ("a", "b"):
        store.put(key, embedding(5))
    store.get("a")

    store.put("c", embedding(4))

    assert store.get("b") is None
    assert store.get("a") is not None
    assert store.get("c") is not None
    assert store.usage().num_evictions == 1
    assert store.usage().used_bytes == 9 * ROW_BYTES


def test_one_large_entry_evicts_as_many_as_it_needs() -> None:
    store = MemoryStore(10 * ROW_BYTES)
    for key in "abcde":
        store.put(key, embedding(2))

    store.put("large", embedding(10))

    assert store.usage().num_entries == 1
    assert store.usage().num_evictions == 5


def test_entry_larger_than_the_budget_is_not_kept_and_evicts_nothing() -> None:
    store = MemoryStore(10 * ROW_BYTES)
    store.put("a", embedding(5))

    store.put("large", embedding(11))

    assert store.get("large") is None
    assert store.get("a") is not None
    assert store.usage().num_evictions == 0


def test_capacity_zero_keeps_nothing_not_even_empty_tensors() -> None:
    store = MemoryStore(0)

    store.put("a", embedding(1))
    store.put("empty", embedding(0))

    assert store.get("a") is None
    assert store.get("empty") is None
    assert store.usage().num_entries == 0


def test_second_put_of_a_key_replaces_the_first() -> None:
    store = MemoryStore(10 * ROW_BYTES)
    newer = embedding(3, 2.0)
    store.put("a", embedding(8))

    store.put("a", newer)

    assert store.get("a") is newer
    assert store.usage().used_bytes == 3 * ROW_BYTES
    assert store.usage().num_evictions == 0


def test_evicted_tensor_lives_on_with_its_holder() -> None:
    store = MemoryStore(5 * ROW_BYTES)
    store.put("a", embedding(5, 7.0))
    held = store.get("a")

    store.put("b", embedding(5, 1.0))

    assert held is not None
    assert torch.equal(held.tensor, embedding(5, 7.0).tensor)


def test_closed_store_is_empty_and_can_be_closed_twice() -> None:
    store = MemoryStore(10 * ROW_BYTES)
    store.put("a", embedding(5))

    store.close()
    store.close()

    assert store.get("a") is None
    assert store.usage().used_bytes == 0


def test_threads_never_exceed_the_budget_or_lose_count() -> None:
    store = MemoryStore(10 * ROW_BYTES)
    over_budget: list[int] = []

    def work(seed: int) -> None:
        for step in range(200):
            store.put(f"{(seed * 7 + step) % 13}", embedding(1 + step % 4))
            store.get(f"{step % 13}")
            if (used := store.usage().used_bytes) > 10 * ROW_BYTES:
                over_budget.append(used)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    usage = store.usage()
    assert not over_budget
    assert usage.num_hits + usage.num_misses == 4 * 200
