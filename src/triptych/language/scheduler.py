"""Two decisions: who may run, and what runs next."""

from __future__ import annotations

from collections import deque

from triptych.kv.pages import PagePool
from triptych.language.sequence import Chunk, Sequence


class Scheduler:
    """Owns the queues and says what the next forward runs. Not thread-safe.

    First come, first served. Decodes go first, then prefill chunks in order of admission, then new
    sequences, up to `max_batch_tokens`. A decode that finds no page preempts the sequence admitted last:
    that one gives its pages back, waits at the head of the queue and is computed again.
    """

    def __init__(self, pool: PagePool, max_batch_tokens: int, max_running: int) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._pool = pool
        self._max_batch_tokens = max_batch_tokens
        # Fewer decodes than the budget, so that a sequence in prefill always gets on.
        self._max_running = min(max_running, max_batch_tokens)

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def enqueue(self, sequence: Sequence) -> None:
        """A sequence that has everything it needs; alone, it must fit the pool."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """It ended, for whatever reason."""
        sequence.forget_cache()
        queue = self.running if sequence in self.running else self.waiting
        queue.remove(sequence)

    def next_batch(self) -> list[Chunk]:
        """What to run now; empty only if there is nothing to do. Every chunk has its pages."""
        chunks = self._decodes()
        budget = self._max_batch_tokens - len(chunks)
        for sequence in self.running:
            if budget > 0 and sequence.num_uncached > 1:
                chunks.append(Chunk(sequence, min(budget, sequence.num_uncached)))
                budget -= chunks[-1].num_tokens
        while budget > 0 and self._may_admit():
            sequence = self.waiting.popleft()
            self.running.append(sequence)
            chunks.append(Chunk(sequence, min(budget, sequence.num_uncached)))
            budget -= chunks[-1].num_tokens
        return chunks

    def _decodes(self) -> list[Chunk]:
        chunks: list[Chunk] = []
        for sequence in tuple(self.running):
            if sequence in self.running and sequence.num_uncached == 1 and self._make_room(sequence):
                chunks.append(Chunk(sequence, 1))
        return chunks

    def _make_room(self, sequence: Sequence) -> bool:
        """Pages for one more token, if need be of those admitted later; False: it was preempted itself."""
        while not sequence.table.grow(sequence.num_cached + 1):
            victim = self.running.pop()
            victim.forget_cache()
            self.waiting.appendleft(victim)
            if victim is sequence:
                return False
        return True

    def _may_admit(self) -> bool:
        """Take pages for the head of the queue, leaving one for each running sequence to grow into."""
        if not self.waiting or len(self.running) >= self._max_running:
            return False
        head = self.waiting[0]
        needed = self._pool.layout.pages_for(len(head.tokens))
        if needed + len(self.running) > self._pool.num_free:
            return False
        return head.table.grow(len(head.tokens))
