"""The pages themselves: who holds which, and the tensors behind them.

page p of layer l = keys[l][p * page_tokens : (p + 1) * page_tokens], values likewise
token t of a sequence lives in slot pages[t // page_tokens] * page_tokens + t % page_tokens
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from triptych.kv.layout import KvLayout


class PagePool:
    """All pages of one engine. Not thread-safe: one owner.

    `keys[layer]`: [num_pages * page_tokens, num_kv_heads, key_dim], `values[layer]` likewise with value_dim,
    in the layout's dtype, on `device`.
    """

    def __init__(self, layout: KvLayout, device: torch.device) -> None:
        self.layout = layout
        shape, num_slots = layout.shape, layout.num_tokens

        def tensors(dim: int) -> tuple[torch.Tensor, ...]:
            size = (num_slots, shape.num_kv_heads, dim)
            return tuple(torch.zeros(size, dtype=shape.dtype, device=device) for _ in range(shape.num_layers))

        self.keys = tensors(shape.key_dim)
        self.values = tensors(shape.value_dim)
        self._free = list(range(layout.num_pages - 1, -1, -1))
        self._held = bytearray(layout.num_pages)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.layout.num_pages - len(self._free)

    @property
    def usage(self) -> float:
        """Share of pages in use, 0 to 1."""
        return self.num_used / self.layout.num_pages

    def take(self, count: int) -> list[int] | None:
        """`count` pages, or None (and nothing taken) if fewer are free."""
        if count > len(self._free):
            return None
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            self._held[page] = 1
        return taken

    def clear(self, page: int) -> None:
        """Forget what a former holder wrote: a masked slot is multiplied by 0, and 0 * nan is nan."""
        begin = page * self.layout.page_tokens
        for tensor in (*self.keys, *self.values):
            tensor.narrow(0, begin, self.layout.page_tokens).zero_()

    def give_back(self, pages: Sequence[int]) -> None:
        """Free pages. A page that nobody holds is a bug of the caller."""
        for page in pages:
            assert self._held[page], f"page {page} is free already"
            self._held[page] = 0
            self._free.append(page)


class PageTable:
    """The pages of one sequence, in the order of its tokens. `close` can be called twice."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._pages: NDArray[np.int64] = np.empty(8, dtype=np.int64)
        self._count = 0

    @property
    def pages(self) -> NDArray[np.int64]:
        """[num_pages] view; valid until the table grows or closes."""
        return self._pages[: self._count]

    @property
    def num_pages(self) -> int:
        return self._count

    @property
    def capacity_tokens(self) -> int:
        return self._count * self._pool.layout.page_tokens

    def grow(self, num_tokens: int) -> bool:
        """Hold pages for `num_tokens` tokens in all; False (and nothing changed) if the pool has too few.

        The last page is clear: it is read whole before it is full.
        """
        missing = self._pool.layout.pages_for(num_tokens) - self._count
        if missing <= 0:
            return True
        taken = self._pool.take(missing)
        if taken is None:
            return False
        needed = self._count + missing
        if needed > len(self._pages):
            self._pages = np.resize(self._pages, max(needed, 2 * len(self._pages)))
        self._pages[self._count : needed] = taken
        self._count = needed
        self._pool.clear(taken[-1])
        return True

    def slots(self, begin: int, end: int) -> NDArray[np.int64]:
        """[end - begin] pool slots of the tokens begin..end."""
        page_tokens = self._pool.layout.page_tokens
        tokens = np.arange(begin, end)
        return self._pages[tokens // page_tokens] * page_tokens + tokens % page_tokens

    def close(self) -> None:
        """Give every page back."""
        pages = self.pages.tolist()
        self._count = 0
        self._pool.give_back(pages)
