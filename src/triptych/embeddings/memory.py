"""The encoder cache's local tier: a byte-budgeted least-recently-used map in this process."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from triptych.embeddings.interface import CachedEmbedding


@dataclass(frozen=True, slots=True)
class StoreUsage:
    """One moment of a store, for metrics. The last three only grow."""

    capacity_bytes: int
    used_bytes: int
    num_entries: int
    num_hits: int
    num_misses: int
    num_evictions: int


class MemoryStore:
    """An `EmbeddingStore` that holds at most `capacity_bytes` of tensors; 0 holds nothing.

    Evicted tensors live on for as long as somebody who got them holds them.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, CachedEmbedding] = OrderedDict()  # least recently used first
        self._used_bytes = 0
        self._num_hits = 0
        self._num_misses = 0
        self._num_evictions = 0

    def get(self, key: str) -> CachedEmbedding | None:
        with self._lock:
            embedding = self._entries.get(key)
            if embedding is None:
                self._num_misses += 1
                return None
            self._num_hits += 1
            self._entries.move_to_end(key)
            return embedding

    def put(self, key: str, embedding: CachedEmbedding) -> None:
        """An entry larger than the whole budget is not kept, and evicts nothing."""
        if not self._capacity_bytes or embedding.size_bytes > self._capacity_bytes:
            return
        with self._lock:
            replaced = self._entries.pop(key, None)
            if replaced is not None:
                self._used_bytes -= replaced.size_bytes
            while self._used_bytes + embedding.size_bytes > self._capacity_bytes:
                _, evicted = self._entries.popitem(last=False)
                self._used_bytes -= evicted.size_bytes
                self._num_evictions += 1
            self._entries[key] = embedding
            self._used_bytes += embedding.size_bytes

    def usage(self) -> StoreUsage:
        with self._lock:
            return StoreUsage(
                capacity_bytes=self._capacity_bytes,
                used_bytes=self._used_bytes,
                num_entries=len(self._entries),
                num_hits=self._num_hits,
                num_misses=self._num_misses,
                num_evictions=self._num_evictions,
            )

    def close(self) -> None:
        with self._lock:
            self._entries.clear()
            self._used_bytes = 0
