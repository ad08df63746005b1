"""One request inside the engine. Mutable, owned by the engine's loop, never sent."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from triptych.kv.pages import PageTable
from triptych.messages import FinishReason, GenerateRequest, Modality, StageTiming
from triptych.telemetry import DECODE, PREFILL, QUEUE


@dataclass(frozen=True, slots=True)
class PlacedRows:
    """`rows` [k, width] belong at the prompt positions `targets` [k] int64, ascending."""

    modality: Modality
    targets: NDArray[np.int64]
    rows: torch.Tensor


@dataclass(slots=True, eq=False)
class Sequence:
    """Prompt and output of one request, and how much of it the KV cache holds.

        tokens   | prompt ............ | output ...... |
                 |<---- num_cached ---->|<- uncached ->|

    One uncached token: the next forward decodes it. More: they are prefilled, in chunks.
    """

    request: GenerateRequest
    positions: NDArray[np.int64]
    """[rows, num_prompt]"""
    delta: int
    embeddings: tuple[PlacedRows, ...]
    stop_ids: frozenset[int]
    max_tokens: int
    """Prompt plus output."""
    table: PageTable
    generator: torch.Generator | None
    """None: greedy."""
    ready_at: float
    """Monotonic seconds when nothing but the engine kept it from running."""
    timings: tuple[StageTiming, ...] = ()
    """What earlier stages spent."""
    tokens: list[int] = field(init=False)
    num_cached: int = 0
    started_at: float | None = None
    first_token_at: float | None = None

    def __post_init__(self) -> None:
        self.tokens = list(self.request.token_ids)

    @property
    def num_prompt(self) -> int:
        return len(self.request.token_ids)

    @property
    def num_uncached(self) -> int:
        return len(self.tokens) - self.num_cached

    def append(self, token_id: int, now: float) -> FinishReason | None:
        """Take a sampled token; the reason if it was the last."""
        self.tokens.append(token_id)
        if self.first_token_at is None:
            self.first_token_at = now
        if token_id in self.stop_ids:
            return "stop"
        return "length" if len(self.tokens) >= self.max_tokens else None

    def forget_cache(self) -> None:
        """Give the pages back; tokens and embeddings stay, so that the cache can be computed again."""
        self.table.close()
        self.num_cached = 0

    def all_timings(self, now: float) -> tuple[StageTiming, ...]:
        """Of a sequence that has its last token."""
        started = self.ready_at if self.started_at is None else self.started_at
        first = now if self.first_token_at is None else self.first_token_at
        spans = ((QUEUE, self.ready_at, started), (PREFILL, started, first), (DECODE, first, now))
        own = (StageTiming(stage=stage, milliseconds=(end - begin) * 1000) for stage, begin, end in spans)
        return (*self.timings, *own)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next `num_tokens` uncached tokens of a sequence, to be run in one forward."""

    sequence: Sequence
    num_tokens: int

    @property
    def samples(self) -> bool:
        """Whether the forward yields the sequence's next token."""
        return self.num_tokens == self.sequence.num_uncached

    @property
    def decodes(self) -> bool:
        """Whether it is one token that ends what is known, i.e. lies in the last page of the table."""
        return self.num_tokens == 1 and self.samples
