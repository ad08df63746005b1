"""The language half of a model: token ids and embedding rows → hidden states → logits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from triptych.errors import InvalidHandle
from triptych.messages import Modality
from triptych.models.checkpoint import LoadReport, load_part
from triptych.models.decoder_support import check_decoder
from triptych.models.eos import eos_token_ids
from triptych.models.interface import EmbeddingRows, ForwardBatch, KvShape, Positions
from triptych.models.kv_shape import kv_shape
from triptych.models.positions import Item, PromptPositions


class HFLanguageModel:
    """A `LanguageModel` on a Transformers model whose encoder modules are gone or never called.

    The model's attention implementation must be set already; it gets `paging` as a keyword. Not thread-safe,
    except `positions`.

    Raises:
        UnsupportedModel: layers other than full attention, or anything else that cannot be served.
    """

    def __init__(self, model: PreTrainedModel, eos_token_ids: tuple[int, ...]) -> None:
        check_decoder(model)
        self._decoder = cast(Callable[..., BaseModelOutputWithPast], model.get_decoder())
        self._embed = cast(Callable[[torch.Tensor], torch.Tensor], model.get_input_embeddings())
        self._head = cast(Callable[[torch.Tensor], torch.Tensor], model.get_output_embeddings())
        self._positions = PromptPositions(model)
        self._text = model.config.get_text_config(decoder=True)
        self._eos_token_ids = eos_token_ids
        self._hidden_size = cast(int, self._text.hidden_size)
        self._dtype = model.dtype
        forward = cast(torch.nn.Module, model.get_decoder()).forward
        takes_deepstack = "deepstack_visual_embeds" in inspect.signature(forward).parameters
        vision = getattr(model.config, "vision_config", None)
        indexes = cast("list[int] | None", getattr(vision, "deepstack_visual_indexes", None))
        self._num_deepstack = len(indexes or []) if takes_deepstack else 0

    @classmethod
    def load(
        cls, path: Path, dtype: torch.dtype, device: str, attn_implementation: str
    ) -> tuple[HFLanguageModel, LoadReport]:
        """From a checkpoint, reading only the language half. `attn_implementation` is registered already.

        Raises:
            CheckpointError: files missing or damaged.
            UnsupportedModel: a model that cannot be served.
        """
        model, report = load_part(path, "language", dtype, device, attn_implementation)
        return cls(model, eos_token_ids(path, model.config)), report

    @property
    def kv_shape(self) -> KvShape:
        return kv_shape(self._text, self._dtype)

    @property
    def max_context_tokens(self) -> int:
        return cast(int, self._text.max_position_embeddings)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self._eos_token_ids

    @property
    def vocab_size(self) -> int:
        return cast(int, self._text.vocab_size)

    def positions(self, token_ids: Sequence[int], items: Sequence[Item]) -> Positions:
        return self._positions(token_ids, items)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        embeds = self._embed(batch.token_ids)
        for rows in batch.embeddings:
            embeds[rows.targets] = rows.rows[:, : self._hidden_size].to(embeds)
        output = self._decoder(
            inputs_embeds=embeds[None],
            position_ids=batch.positions if len(batch.positions) == 1 else batch.positions[:, None],
            use_cache=False,
            paging=batch.paging,
            **self._deepstack(batch.embeddings, embeds),
        )
        assert output.last_hidden_state is not None
        return output.last_hidden_state[0]

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._head(hidden).float()

    def check_width(self, modality: Modality, width: int) -> None:
        num_layers = 1 if modality == "audio" else 1 + self._num_deepstack
        if width != num_layers * self._hidden_size:
            raise InvalidHandle(
                f"{modality} embeddings of width {width} are not of this model: "
                "encode and language workers must serve the same checkpoint"
            )

    def _deepstack(
        self, embeddings: Sequence[EmbeddingRows], embeds: torch.Tensor
    ) -> dict[str, torch.Tensor | list[torch.Tensor]]:
        """What further layers add at visual positions: the decoder wants rows in order of positions."""
        packed = [rows for rows in embeddings if rows.rows.shape[1] > self._hidden_size]
        if not packed:
            return {}
        targets = torch.cat([rows.targets for rows in packed])
        extra = torch.cat([rows.rows[:, self._hidden_size :] for rows in packed]).to(embeds)
        mask = torch.zeros(1, len(embeds), dtype=torch.bool, device=embeds.device)
        mask[0, targets] = True
        layers = extra[targets.argsort()].split(self._hidden_size, dim=1)
        return {"visual_pos_masks": mask, "deepstack_visual_embeds": list(layers)}
