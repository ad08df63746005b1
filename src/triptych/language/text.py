"""Token bytes → text, as it comes: characters split across tokens, and stop strings."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """The text of one reply. Gives the same text however the bytes are cut.

    A stop string ends the text just before itself. Of several, the one complete first wins; of those
    complete at once, the longest. What may become part of a stop string is held back until it cannot.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self._stopped = False

    def feed(self, token_bytes: bytes) -> tuple[str, bool]:
        """Text that is certain now, and whether a stop string ended it. Later bytes are ignored then."""
        if self._stopped:
            return "", True
        text = self._take(self._decoder.decode(token_bytes))
        return text, self._stopped

    def flush(self) -> str:
        """What was held back; the reply has no more bytes."""
        if self._stopped:
            return ""
        text = self._take(self._decoder.decode(b"", final=True)) + self._held
        self._held = ""
        return text

    def _take(self, new: str) -> str:
        pending = self._held + new
        self._held = ""
        matches = [(pending.find(stop), len(stop)) for stop in self._stop]
        ends = [(start + length, start) for start, length in matches if start >= 0]
        if ends:
            self._stopped = True
            return pending[: min(ends)[1]]
        certain = len(pending) - self._num_uncertain(pending)
        self._held = pending[certain:]
        return pending[:certain]

    def _num_uncertain(self, pending: str) -> int:
        """Length of the longest end of `pending` that begins a stop string."""
        longest = max((len(stop) - 1 for stop in self._stop), default=0)
        for length in range(min(longest, len(pending)), 0, -1):
            if any(stop.startswith(pending[-length:]) for stop in self._stop):
                return length
        return 0
