"""Golden tests: the engine on real models answers as `generate` on the whole model does, token for token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
import torch

from tests.language.shelf import Shelf, new_shelf, placed
from tests.language.tiny import greedy, new_engine, request, run, tokens
from tests.models.reference import Conversation, conversation, item_rows, load_model, process
from tests.tiny_models import FAMILIES, MODALITIES
from triptych.language.attention import PAGED_ATTENTION, register_paged_attention
from triptych.messages import GenerateRequest, Metadata, Modality, PromptItem
from triptych.models.chat import HFChatTokenizer
from triptych.models.language import HFLanguageModel

MAX_TOKENS = 20
Placed = tuple[Modality, Metadata, tuple[tuple[int, int], ...], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A rendered conversation, the rows of its items and the reference's answer."""

    token_ids: tuple[int, ...]
    items: tuple[Placed, ...]
    answer: list[int]

    def request(self, name: str, shelf: Shelf) -> GenerateRequest:
        items: list[PromptItem] = []
        for modality, metadata, runs, rows in self.items:
            ref = shelf.producer.reserve(name, "tiny", rows.dtype, tuple(rows.shape))
            shelf.producer.publish(ref, rows)
            items.append(placed(ref, *runs, modality=modality, metadata=metadata))
        sampling = greedy(MAX_TOKENS, ignore_eos=False)
        return request(name, self.token_ids, sampling, items=tuple(items))


def case(family: str, directory: Path, conv: Conversation) -> Case:
    reference = process(directory, conv)
    model = load_model(family, directory)
    prompt = HFChatTokenizer(directory).render(conv.messages, conv.items, reference.metadata)
    counts: list[tuple[Modality, int]] = [
        (conv.items[item.item_index].modality, sum(length for _, length in item.runs))
        for item in prompt.items
    ]
    items: list[Placed] = [
        (modality, reference.metadata[item.item_index], item.runs, rows.contiguous())
        for (modality, _), item, rows in zip(
            counts, prompt.items, item_rows(model, reference.batch, counts), strict=True
        )
    ]
    generate = cast("Callable[..., torch.Tensor]", model.generate)
    with torch.no_grad():
        output = generate(**reference.batch, max_new_tokens=MAX_TOKENS, do_sample=False)
    return Case(prompt.token_ids, tuple(items), output[0, len(prompt.token_ids) :].tolist())


@pytest.mark.parametrize("family", FAMILIES)
def test_mixed_media_in_one_batch_equal_generate(family: str, checkpoints: Callable[[str], Path]) -> None:
    directory = checkpoints(family)
    parts = [f"<{modality}>" for modality in MODALITIES[family]]
    cases = {
        "all": case(
            family,
            directory,
            conversation(("user", ["See ", *parts, " and ", *parts, "!"]), even_videos=True),
        ),
        "image": case(family, directory, conversation(("user", ["<image>", "what is it?"]))),
        "text": case(family, directory, conversation(("user", ["only text"]))),
    }
    register_paged_attention()
    model, _ = HFLanguageModel.load(directory, torch.float32, "cpu", PAGED_ATTENTION)
    longest = max(len(case.token_ids) for case in cases.values())
    for budget, num_pages in ((50, 200), (512, 200), (100, -(-(longest + MAX_TOKENS) // 16))):
        with new_shelf() as shelf:
            engine = new_engine(
                model, shelf.consumer, max_batch_tokens=budget, page_tokens=16, num_pages=num_pages
            )
            for name, one in cases.items():
                engine.add(one.request(name, shelf))
            events = run(engine)
            engine.close()
            assert shelf.num_references == 0
        assert {name: tokens(events[name]) for name in cases} == {
            name: one.answer for name, one in cases.items()
        }
