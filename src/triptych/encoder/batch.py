"""Which queued items go through the encoder together."""

from __future__ import annotations

from collections.abc import Sequence


def batch_size(num_tokens: Sequence[int], max_batch_tokens: int) -> int:
    """How many items from the front of the queue make the next batch; `num_tokens` are their embedding rows.

    First come, first served: a large item is not overtaken by small ones behind it. One that exceeds the
    limit by itself goes alone. 0 only if the queue is empty.
    """
    total = 0
    for count, tokens in enumerate(num_tokens):
        total += tokens
        if total > max_batch_tokens:
            return max(count, 1)
    return len(num_tokens)


def is_full(num_tokens: Sequence[int], max_batch_tokens: int) -> bool:
    """Whether waiting for company is pointless: the next batch cannot take another item."""
    return sum(num_tokens) >= max_batch_tokens
