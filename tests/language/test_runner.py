from __future__ import annotations

from collections.abc import Sequence as Several

import numpy as np
import torch

from tests.language.test_scheduler import new_pool, waiting
from triptych.kv.pages import PagePool
from triptych.language.runner import Runner
from triptych.language.sequence import Chunk, PlacedRows, Sequence
from triptych.messages import Metadata, Modality
from triptych.models.interface import ForwardBatch, KvShape, Positions

CPU = torch.device("cpu")


class Recorder:
    """A `LanguageModel` that keeps its batches; hidden states are the token ids."""

    kv_shape = KvShape(num_layers=1, num_kv_heads=1, key_dim=1, value_dim=1, dtype=torch.float32)
    max_context_tokens = 100
    eos_token_ids = ()
    vocab_size = 10

    def __init__(self) -> None:
        self.batches: list[ForwardBatch] = []

    def positions(
        self,
        token_ids: Several[int],
        items: Several[tuple[Modality, Metadata, tuple[tuple[int, int], ...]]],
    ) -> Positions:
        raise NotImplementedError

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        self.batches.append(batch)
        return batch.token_ids[:, None].float()

    def check_width(self, modality: Modality, width: int) -> None:
        raise NotImplementedError

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


def running(pool: PagePool, name: str, length: int, cached: int) -> Sequence:
    sequence = waiting(pool, name, length)
    assert sequence.table.grow(length + 4)
    sequence.tokens[:] = range(length)
    sequence.num_cached = cached
    return sequence


def test_decodes_follow_prefills_and_only_due_rows_are_sampled() -> None:
    pool, model = new_pool(50), Recorder()
    part, whole, decode = running(pool, "p", 9, 2), running(pool, "w", 3, 0), running(pool, "d", 5, 5)
    decode.tokens.append(77)
    due, logits = Runner(model, pool, CPU).run([Chunk(decode, 1), Chunk(part, 4), Chunk(whole, 3)])
    (batch,) = model.batches
    assert batch.token_ids.tolist() == [2, 3, 4, 5, 0, 1, 2, 77]
    assert batch.positions.tolist() == [[2, 3, 4, 5, 0, 1, 2, 5]]
    assert [s.request.request_id for s in due] == ["w", "d"]
    assert logits[:, 0].tolist() == [2, 77]
    assert [s.num_cached for s in (part, whole, decode)] == [6, 3, 6]


def test_generated_positions_are_shifted_in_all_rows_but_the_first() -> None:
    pool, model = new_pool(50), Recorder()
    sequence = running(pool, "a", 4, 5)
    sequence.positions = np.array([[0, 1, 2, 3], [0, 1, 1, 1], [0, 1, 1, 1], [0, 1, 2, 2]])
    sequence.delta = -1
    sequence.tokens += [8, 9]
    Runner(model, pool, CPU).run([Chunk(sequence, 1)])
    assert model.batches[0].positions.tolist() == [[5], [4], [4], [4]]
    sequence.num_cached = 2
    sequence.tokens.append(3)
    Runner(model, pool, CPU).run([Chunk(sequence, 5)])
    assert model.batches[1].positions.tolist() == [
        [2, 3, 4, 5, 6],
        [1, 1, 3, 4, 5],
        [1, 1, 3, 4, 5],
        [2, 2, 3, 4, 5],
    ]


def test_chunk_carries_the_embedding_rows_that_fall_into_it() -> None:
    pool, model = new_pool(50), Recorder()
    first, second = running(pool, "a", 6, 0), running(pool, "b", 8, 3)
    rows = torch.arange(4.0)[:, None]
    second.embeddings = (PlacedRows("audio", np.array([1, 2, 4, 6]), rows),)
    Runner(model, pool, CPU).run([Chunk(first, 6), Chunk(second, 3)])
    (embedding,) = model.batches[0].embeddings
    assert (embedding.modality, embedding.targets.tolist(), embedding.rows.tolist()) == (
        "audio",
        [7],
        [[2.0]],
    )
