"""Which bytes of a slab are free: best fit, 64-byte alignment, neighbours coalesce."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

ALIGNMENT_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes [offset, offset + size_bytes) of a slab; `size_bytes` is a multiple of the alignment."""

    offset: int
    size_bytes: int

    @property
    def end(self) -> int:
        return self.offset + self.size_bytes


class ExtentAllocator:
    """Hands out extents of [0, capacity). Not thread-safe.

    `_free` is sorted by offset; no two of its extents touch:

        0 ▒▒▒▒░░░░░▒▒▒░░▒▒▒▒▒▒░░░░░░░ capacity      ▒ taken   ░ one entry of `_free` each
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        self._free = [Extent(0, self.capacity_bytes)] if self.capacity_bytes else []
        self._taken: set[Extent] = set()

    @property
    def used_bytes(self) -> int:
        return self.capacity_bytes - sum(extent.size_bytes for extent in self._free)

    def take(self, size_bytes: int) -> Extent | None:
        """The smallest hole that holds `size_bytes` (0 takes one unit, so that every slot has a place of its
        own); None if there is none."""
        wanted = max(1, -(-size_bytes // ALIGNMENT_BYTES)) * ALIGNMENT_BYTES
        fitting = [i for i, hole in enumerate(self._free) if hole.size_bytes >= wanted]
        if not fitting:
            return None
        index = min(fitting, key=lambda i: self._free[i].size_bytes)
        hole = self._free[index]
        rest = Extent(hole.offset + wanted, hole.size_bytes - wanted)
        self._free[index : index + 1] = [rest] if rest.size_bytes else []
        extent = Extent(hole.offset, wanted)
        self._taken.add(extent)
        return extent

    def give_back(self, extent: Extent) -> None:
        """Make a taken extent free again.

        Raises:
            KeyError: it is not taken (a bug of the caller).
        """
        self._taken.remove(extent)
        index = bisect_left(self._free, extent.offset, key=lambda hole: hole.offset)
        start, end = extent.offset, extent.end
        first = last = index
        if index and self._free[index - 1].end == start:
            first, start = index - 1, self._free[index - 1].offset
        if index < len(self._free) and self._free[index].offset == end:
            last, end = index + 1, self._free[index].end
        self._free[first:last] = [Extent(start, end - start)]
