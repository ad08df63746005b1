"""What a process does with memory once everything is loaded."""

from __future__ import annotations

import gc


def settle_memory() -> None:
    """Tell the garbage collector that what is there now stays: it need not look at it again."""
    gc.collect()
    gc.freeze()
