"""One forward: chunks of sequences → batch tensors → logits of the rows that need sampling."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from triptych.kv.pages import PagePool
from triptych.language.paging import in_batch_order, plan_paging
from triptych.language.sequence import Chunk, PlacedRows, Sequence
from triptych.models.interface import EmbeddingRows, ForwardBatch, LanguageModel


class Runner:
    """Runs batches on the model. Holds no state of requests; not thread-safe, as the model is not."""

    def __init__(self, model: LanguageModel, pool: PagePool, device: torch.device) -> None:
        self._model = model
        self._pool = pool
        self._device = device

    def run(self, chunks: list[Chunk]) -> tuple[list[Sequence], torch.Tensor]:
        """Compute every chunk: their tokens are cached then.

        Returns the sequences whose next token is due, with its logits [k, vocab] float32.
        """
        ordered = in_batch_order(chunks)
        batch, last_rows = self._batch(ordered)
        with torch.inference_mode():
            hidden = self._model.forward(batch)
            logits = self._model.logits(hidden[torch.from_numpy(last_rows).to(self._device)])
        due = [chunk.sequence for chunk in ordered if chunk.samples]
        for chunk in ordered:
            chunk.sequence.num_cached += chunk.num_tokens
        return due, logits

    def _batch(self, chunks: list[Chunk]) -> tuple[ForwardBatch, NDArray[np.int64]]:
        """The forward's input, and the batch rows whose logits are wanted."""
        counts = np.array([chunk.num_tokens for chunk in chunks])
        ends = np.cumsum(counts)
        num_rows = max(chunk.sequence.positions.shape[0] for chunk in chunks)
        token_ids = np.empty(ends[-1], dtype=np.int64)
        positions = np.empty((num_rows, ends[-1]), dtype=np.int64)
        embeddings: list[EmbeddingRows] = []
        for chunk, begin in zip(chunks, (ends - counts).tolist(), strict=True):
            sequence, past = chunk.sequence, chunk.sequence.num_cached
            end, known = begin + chunk.num_tokens, past + chunk.num_tokens
            if past >= sequence.num_prompt and chunk.num_tokens == 1:
                token_ids[begin] = sequence.tokens[past]
                positions[:, begin] = past + sequence.delta
                positions[0, begin] = past
                continue
            token_ids[begin:end] = sequence.tokens[past:known]
            positions[:, begin:end] = _positions(sequence, past, known)
            embeddings.extend(self._rows(sequence.embeddings, past, known, begin))
        batch = ForwardBatch(
            token_ids=torch.from_numpy(token_ids).to(self._device),
            positions=torch.from_numpy(positions).to(self._device),
            embeddings=tuple(embeddings),
            paging=plan_paging(self._pool, chunks, self._device),
        )
        return batch, ends[[chunk.samples for chunk in chunks]] - 1

    def _rows(self, placed: tuple[PlacedRows, ...], first: int, last: int, begin: int) -> list[EmbeddingRows]:
        """The embedding rows that fall on the tokens first..last, which stand at `begin` in the batch."""
        found: list[EmbeddingRows] = []
        for item in placed:
            low, high = np.searchsorted(item.targets, (first, last)).tolist()
            if low < high:
                targets = torch.from_numpy(item.targets[low:high] + (begin - first)).to(self._device)
                rows = item.rows[low:high].to(self._device)
                found.append(EmbeddingRows(modality=item.modality, targets=targets, rows=rows))
        return found


def _positions(sequence: Sequence, first: int, last: int) -> NDArray[np.int64]:
    """[rows, last - first]: the prompt's own; behind it the token index, shifted by delta but in row 0."""
    prompt = sequence.positions[:, first:last]
    if last <= sequence.num_prompt:
        return prompt
    behind = np.arange(max(first, sequence.num_prompt), last)
    generated = np.repeat(behind[None] + sequence.delta, len(sequence.positions), axis=0)
    generated[0] = behind
    return np.concatenate((prompt, generated), axis=1)
