"""Golden tests: positions and prompt logits equal those of the whole model called with the media."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from tests.models.reference import (
    Conversation,
    Reference,
    conversation,
    item_rows,
    load_model,
    metadata_array,
    process,
)
from tests.tiny_models import FAMILIES, MODALITIES
from triptych.errors import InvalidHandle, UnsupportedModel
from triptych.messages import Modality
from triptych.models.chat import HFChatTokenizer
from triptych.models.interface import EmbeddingRows, ForwardBatch, Prompt
from triptych.models.language import HFLanguageModel
from triptych.models.positions import Item

DENSE = "test_dense"
TOLERANCE = 1e-4
"""float32: attention sums in another order than the reference's."""


def dense_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    paging: object = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """One sequence, causal; `paging` proves that it arrives."""
    assert paging == "the paging"
    assert attention_mask is None
    out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
    return out.transpose(1, 2), None


@pytest.fixture(scope="module")
def language_models(checkpoints: Callable[[str], Path]) -> Callable[[str], HFLanguageModel]:
    AttentionInterface.register(DENSE, dense_attention)
    loaded: dict[str, HFLanguageModel] = {}

    def load(family: str) -> HFLanguageModel:
        if family not in loaded:
            loaded[family], _ = HFLanguageModel.load(checkpoints(family), torch.float32, "cpu", DENSE)
        return loaded[family]

    return load


def rendered(directory: Path, conv: Conversation) -> tuple[Reference, Prompt]:
    reference = process(directory, conv)
    return reference, HFChatTokenizer(directory).render(conv.messages, conv.items, reference.metadata)


def items_of(conv: Conversation, reference: Reference, prompt: Prompt) -> list[Item]:
    placed = prompt.items
    return [(conv.items[p.item_index].modality, reference.metadata[p.item_index], p.runs) for p in placed]


def prompt_batch(
    language: HFLanguageModel,
    model: PreTrainedModel,
    conv: Conversation,
    reference: Reference,
    prompt: Prompt,
) -> ForwardBatch:
    """The whole prompt in one batch, rows from the reference's encoders."""
    items = items_of(conv, reference, prompt)
    counts: list[tuple[Modality, int]] = [(m, sum(length for _, length in runs)) for m, _, runs in items]
    embeddings = [
        EmbeddingRows(modality, torch.cat([torch.arange(o, o + n) for o, n in runs]), rows)
        for (modality, _, runs), rows in zip(items, item_rows(model, reference.batch, counts), strict=True)
    ]
    positions = language.positions(prompt.token_ids, items)
    return ForwardBatch(
        token_ids=torch.tensor(prompt.token_ids),
        positions=positions.ids,
        embeddings=tuple(reversed(embeddings)),  # in any order
        paging="the paging",
    )


def check_equal_to_reference(
    family: str, directory: Path, language: HFLanguageModel, conv: Conversation
) -> None:
    reference, prompt = rendered(directory, conv)
    assert prompt.token_ids == reference.token_ids
    model = load_model(family, directory)
    batch = prompt_batch(language, model, conv, reference, prompt)
    inputs = dict(reference.batch)
    prepare = cast(
        Callable[..., torch.Tensor],
        model._prepare_position_ids_for_generation,  # pyright: ignore[reportPrivateUsage]
    )
    expected = prepare(inputs["input_ids"], inputs).reshape(-1, len(prompt.token_ids))
    assert torch.equal(batch.positions, expected.long())
    assert torch.equal(expected, expected.long().to(expected.dtype))
    with torch.no_grad():
        logits = cast(Callable[..., object], model)(**inputs)
    expected_logits = cast(torch.Tensor, getattr(logits, "logits", None))[0]
    torch.testing.assert_close(
        language.logits(language.forward(batch)), expected_logits, atol=TOLERANCE, rtol=TOLERANCE
    )


def orders(family: str) -> list[tuple[str, ...]]:
    return list(itertools.permutations(f"<{modality}>" for modality in MODALITIES[family]))


ORDERS = [(family, order) for family in FAMILIES for order in orders(family)]


@pytest.mark.parametrize(("family", "order"), ORDERS, ids=str)
def test_every_order_of_modalities_gives_the_references_logits(
    family: str,
    order: Sequence[str],
    checkpoints: Callable[[str], Path],
    language_models: Callable[[str], HFLanguageModel],
) -> None:
    conv = conversation(("user", ["See ", *order, " and say."]))
    check_equal_to_reference(family, checkpoints(family), language_models(family), conv)


@pytest.mark.parametrize("family", FAMILIES)
def test_several_interleaved_items_over_turns_give_the_references_logits(
    family: str, checkpoints: Callable[[str], Path], language_models: Callable[[str], HFLanguageModel]
) -> None:
    parts = [f"<{modality}>" for modality in MODALITIES[family]]
    conv = conversation(
        ("system", ["Be brief."]),
        ("user", ["a", *parts, "b", *reversed(parts), "<image>"]),
        ("assistant", ["Fine: é."]),
        ("user", ["more?"]),
        even_videos=True,
    )
    check_equal_to_reference(family, checkpoints(family), language_models(family), conv)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("parts", [("<image>",), ("<video>",), ("text alone",)], ids=str)
def test_single_items_and_text_give_the_references_logits(
    family: str,
    parts: Sequence[str],
    checkpoints: Callable[[str], Path],
    language_models: Callable[[str], HFLanguageModel],
) -> None:
    conv = conversation(("user", parts))
    check_equal_to_reference(family, checkpoints(family), language_models(family), conv)


def test_audio_alone_gives_the_references_logits(
    checkpoints: Callable[[str], Path], language_models: Callable[[str], HFLanguageModel]
) -> None:
    conv = conversation(("user", ["<audio>", "<audio>", "compare"]))
    check_equal_to_reference("qwen3_omni", checkpoints("qwen3_omni"), language_models("qwen3_omni"), conv)


@pytest.mark.parametrize("family", FAMILIES)
def test_delta_continues_the_references_positions(
    family: str, checkpoints: Callable[[str], Path], language_models: Callable[[str], HFLanguageModel]
) -> None:
    conv = conversation(("user", ["<image>", "<video>", "?"]))
    reference, prompt = rendered(checkpoints(family), conv)
    items = items_of(conv, reference, prompt)
    positions = language_models(family).positions(prompt.token_ids, items)
    last = positions.ids[:, -1].tolist()
    n = len(prompt.token_ids)
    assert [*last[:1], *(p + 1 - n for p in last[1:])] == [n - 1, *(positions.delta for _ in last[1:])]
    assert (positions.delta == 0) == (family == "internvl")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_language_half_knows_its_shape(
    family: str, checkpoints: Callable[[str], Path], language_models: Callable[[str], HFLanguageModel]
) -> None:
    language = language_models(family)
    shape = language.kv_shape
    assert (shape.num_layers, shape.num_kv_heads, shape.key_dim, shape.value_dim) == (3, 2, 16, 16)
    assert shape.dtype == torch.float32
    assert language.max_context_tokens == 8192
    assert language.vocab_size == 288
    assert language.eos_token_ids == HFChatTokenizer(checkpoints(family)).eos_token_ids
    assert len(language.eos_token_ids) > 1


def test_metadata_that_does_not_fit_the_prompt_is_an_invalid_handle(
    checkpoints: Callable[[str], Path], language_models: Callable[[str], HFLanguageModel]
) -> None:
    conv = conversation(("user", ["<image>"]))
    _, prompt = rendered(checkpoints("qwen3_vl"), conv)
    grid = metadata_array("image_grid_thw", torch.tensor([[1, 2, 2]]).numpy())
    with pytest.raises(InvalidHandle, match="does not fit the prompt"):
        language_models("qwen3_vl").positions(prompt.token_ids, [("image", (grid,), prompt.items[0].runs)])


def test_rows_of_a_wrong_width_are_an_invalid_handle(
    language_models: Callable[[str], HFLanguageModel],
) -> None:
    model = language_models("qwen3_vl")
    model.check_width("image", 64 * 3)  # two DeepStack layers behind the main rows
    for width in (64, 65, 64 * 2, 64 * 4):
        with pytest.raises(InvalidHandle, match=f"width {width}"):
            model.check_width("image", width)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            {"layer_types": ["full_attention", "sliding_attention", "linear_attention"]},
            "linear_attention, sliding",
        ),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    ],
)
def test_what_paged_causal_attention_is_not_is_refused_by_name(
    change: dict[str, object], named: str, checkpoints: Callable[[str], Path]
) -> None:
    model = load_model("internvl", checkpoints("internvl"))
    text = model.config.get_text_config(decoder=True)
    before = {name: getattr(text, name, None) for name in change}
    try:
        text.update(change)
        with pytest.raises(UnsupportedModel, match=named):
            HFLanguageModel(model, ())
    finally:
        text.update(before)
