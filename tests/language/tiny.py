"""A tiny random text model behind the `LanguageModel` Protocol, and an engine around it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import torch

from triptych.config import LanguageConfig
from triptych.errors import InvalidHandle
from triptych.kv.layout import KvShape
from triptych.language.attention import PAGED_ATTENTION, register_paged_attention
from triptych.language.engine import Clock, Engine
from triptych.messages import (
    Failed,
    GenerateRequest,
    Metadata,
    Modality,
    PromptItem,
    SamplingParams,
    TensorRef,
    TokenEvent,
)
from triptych.models.interface import ForwardBatch, LanguageModel, Positions
from triptych.transport.interface import Consumer, Fetched

register_paged_attention()
from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: E402  importable only after the line above

VOCAB = 128
EOS = 7
HIDDEN = 32


def qwen3(num_layers: int = 2, hidden: int = HIDDEN, vocab: int = VOCAB, seed: int = 0) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden // 4,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    for parameter in model.parameters():
        if parameter.dim() >= 2:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval().float()


class TinyLanguageModel:
    """Implements `LanguageModel`. `broken` makes the next forward raise."""

    max_context_tokens = 4096
    eos_token_ids: tuple[int, ...] = (EOS,)

    def __init__(self, model: Qwen3ForCausalLM) -> None:
        self._model = model
        model.set_attn_implementation(PAGED_ATTENTION)
        config = model.config
        assert config.num_key_value_heads
        assert config.head_dim
        self.vocab_size = int(config.vocab_size)
        self.kv_shape = KvShape(
            num_layers=int(config.num_hidden_layers),
            num_kv_heads=int(config.num_key_value_heads),
            key_dim=int(config.head_dim),
            value_dim=int(config.head_dim),
            dtype=torch.float32,
        )
        self.broken = False
        self.batch_sizes: list[int] = []

    def positions(
        self,
        token_ids: Sequence[int],
        items: Sequence[tuple[Modality, Metadata, tuple[tuple[int, int], ...]]],
    ) -> Positions:
        return Positions(ids=torch.arange(len(token_ids))[None], delta=0)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        if self.broken:
            self.broken = False
            raise RuntimeError("the accelerator fell over")
        self.batch_sizes.append(len(batch.token_ids))
        embeds = self._model.get_input_embeddings()(batch.token_ids)
        for rows in batch.embeddings:
            embeds.index_copy_(0, rows.targets, rows.rows)
        output = self._model.model(
            inputs_embeds=embeds[None], position_ids=batch.positions, use_cache=False, paging=batch.paging
        )
        return output.last_hidden_state[0]

    def check_width(self, modality: Modality, width: int) -> None:
        if width != HIDDEN:
            raise InvalidHandle(f"{modality} rows of width {width}")

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._model.lm_head(hidden).float()


class NoEmbeddings:
    """A consumer for text-only tests."""

    def fetch(self, ref: TensorRef, deadline_seconds: float) -> Fetched:
        raise AssertionError("nothing to fetch")

    def release(self, ref: TensorRef) -> None: ...

    def close(self) -> None: ...


def new_engine(
    model: LanguageModel,
    consumer: Consumer | None = None,
    *,
    num_pages: int = 64,
    page_tokens: int = 4,
    max_batch_tokens: int = 256,
    max_running: int = 16,
    max_waiting: int = 64,
    max_context_tokens: int = 4096,
    max_embedding_bytes: int = 1 << 20,
    num_fetch_threads: int = 4,
    clock: Clock = time.monotonic,
) -> Engine:
    config = LanguageConfig(
        max_context_tokens=max_context_tokens,
        max_batch_tokens=max_batch_tokens,
        max_running=max_running,
        max_waiting=max_waiting,
        kv_page_tokens=page_tokens,
        kv_pool_bytes=num_pages * page_tokens * model.kv_shape.bytes_per_token,
        max_embedding_bytes=max_embedding_bytes,
        num_fetch_threads=num_fetch_threads,
    )
    return Engine(model, config, consumer or NoEmbeddings(), clock=clock)


def prompt(length: int, seed: int) -> tuple[int, ...]:
    """Random ids without the end token."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(8, VOCAB, (length,), generator=generator).tolist())


def request(
    name: str,
    token_ids: Sequence[int],
    sampling: SamplingParams | None = None,
    *,
    items: tuple[PromptItem, ...] = (),
    deadline_ms: int = 60_000,
) -> GenerateRequest:
    return GenerateRequest(
        request_id=name,
        token_ids=tuple(token_ids),
        items=items,
        sampling=sampling or greedy(8),
        deadline_ms=deadline_ms,
    )


def greedy(max_tokens: int, *, ignore_eos: bool = True) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=ignore_eos)


def run(engine: Engine, max_steps: int = 2000) -> dict[str, list[TokenEvent | Failed]]:
    """Step until nothing is left; events by request."""
    events: dict[str, list[TokenEvent | Failed]] = {}
    for _ in range(max_steps):
        if engine.idle:
            return events
        if not engine.busy:
            assert engine.wakeup.wait(30)
            engine.wakeup.clear()
        collect(events, engine.step().events)
    raise AssertionError(f"not done after {max_steps} steps")


def collect(into: dict[str, list[TokenEvent | Failed]], events: Iterable[TokenEvent | Failed]) -> None:
    for event in events:
        into.setdefault(event.request_id, []).append(event)


def tokens(events: Sequence[TokenEvent | Failed]) -> list[int]:
    """Of a request that did not fail."""
    found: list[int] = []
    for event in events:
        assert isinstance(event, TokenEvent), event
        found.append(event.token_id)
    return found


def reference(
    model: Qwen3ForCausalLM, token_ids: Sequence[int], max_tokens: int, embeds: torch.Tensor | None = None
) -> list[int]:
    """What Transformers generates greedily, ends ignored. `model` is not set to paged attention.

    `embeds` [num_prompt, hidden] stand for the prompt if given.
    """
    ids = torch.tensor([list(token_ids)])
    given = {"inputs": ids} if embeds is None else {"inputs_embeds": embeds[None]}
    # Qwen3's class does not match the stub's protocol of what can generate.
    generate = cast("Callable[..., object]", getattr(model, "generate"))  # noqa: B009
    output = generate(
        **given,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_tokens,
        do_sample=False,
        eos_token_id=-1,
        pad_token_id=0,
    )
    assert isinstance(output, torch.Tensor)
    return output[0, len(token_ids) if embeds is None else 0 :].tolist()
