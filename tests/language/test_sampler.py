from __future__ import annotations

from collections import Counter

import pytest
import torch

from triptych.language.sampler import Sampled, SampleRow, new_generator, sample
from triptych.messages import SamplingParams

VOCAB = 50
LOGITS = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(1)) * 2


def draws(params: SamplingParams, logits: torch.Tensor, count: int) -> list[int]:
    row = SampleRow(params, new_generator(params))
    return [token(sample(logits[None], [row])[0]) for _ in range(count)]


def token(sampled: Sampled | None) -> int:
    assert sampled is not None
    return sampled.token_id


def test_greedy_takes_the_likeliest() -> None:
    rows = [SampleRow(SamplingParams(temperature=0), None)] * 6
    assert [token(s) for s in sample(LOGITS, rows)] == LOGITS.argmax(-1).tolist()


def test_seed_gives_the_same_tokens_whatever_the_batch() -> None:
    params = [
        SamplingParams(seed=1),
        SamplingParams(seed=2, top_p=0.8),
        SamplingParams(seed=3, top_k=5),
        SamplingParams(seed=4, temperature=0.5, top_k=9, top_p=0.6),
        SamplingParams(temperature=0),
        SamplingParams(seed=-5, temperature=2),
    ]
    alone = [draws(p, LOGITS[i], 20) for i, p in enumerate(params)]
    rows = [SampleRow(p, new_generator(p)) for p in params]
    together = [[token(s) for s in sample(LOGITS, rows)] for _ in range(20)]
    assert [list(column) for column in zip(*together, strict=True)] == alone


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=5e-324),
        SamplingParams(temperature=1e-300, top_k=7),
        SamplingParams(top_p=1e-300),
        SamplingParams(temperature=1e-46, top_p=1e-46),
    ],
)
def test_values_that_float32_cannot_hold_give_the_likeliest(params: SamplingParams) -> None:
    assert draws(params, LOGITS[0], 5) == [int(LOGITS[0].argmax())] * 5


def test_unseeded_requests_differ() -> None:
    flat = torch.zeros(VOCAB)
    assert draws(SamplingParams(), flat, 20) != draws(SamplingParams(), flat, 20)


def test_frequencies_follow_the_distribution() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    counts = Counter(draws(SamplingParams(seed=0, temperature=1.5), logits, 4000))
    expected = (logits / 1.5).softmax(-1)
    observed = torch.tensor([counts[i] / 4000 for i in range(4)])
    assert (observed - expected).abs().max() < 0.03


def test_top_k_draws_from_the_likeliest_only() -> None:
    likeliest = set(LOGITS[0].topk(3).indices.tolist())
    assert set(draws(SamplingParams(seed=0, temperature=2, top_k=3), LOGITS[0], 300)) == likeliest


def test_top_p_draws_from_the_smallest_sufficient_set() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert set(draws(SamplingParams(seed=0, top_p=0.79), logits, 300)) == {0, 1}
    assert set(draws(SamplingParams(seed=0, top_p=0.81), logits, 300)) == {0, 1, 2}
    assert set(draws(SamplingParams(seed=0, top_p=0.01), logits, 50)) == {0}


def test_top_p_counts_the_mass_that_top_k_leaves() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert set(draws(SamplingParams(seed=0, top_k=2, top_p=0.55), logits, 100)) == {0}


def test_temperature_near_zero_is_greedy() -> None:
    params = SamplingParams(seed=0, temperature=1e-30)
    assert set(draws(params, LOGITS[2], 10)) == {int(LOGITS[2].argmax())}


def test_tokens_without_mass_are_never_drawn() -> None:
    logits = torch.full((VOCAB,), float("-inf"))
    logits[[3, 40]] = 0
    assert set(draws(SamplingParams(seed=0), logits, 100)) == {3, 40}


def test_logprobs_are_those_of_the_unmodified_distribution() -> None:
    params = [
        SamplingParams(seed=1, temperature=0.3, top_k=2, num_logprobs=4),
        SamplingParams(temperature=0, num_logprobs=0),
        SamplingParams(temperature=0),
    ]
    sampled = sample(LOGITS[:3], [SampleRow(p, new_generator(p)) for p in params])
    expected = LOGITS.log_softmax(-1)
    first, second, third = sampled
    assert first is not None
    assert first.logprobs is not None
    assert first.logprobs.logprob == expected[0, first.token_id]
    values, tokens = expected[0].topk(4)
    assert first.logprobs.top == tuple(zip(tokens.tolist(), values.tolist(), strict=True))
    assert second is not None
    assert second.logprobs is not None
    assert second.logprobs.logprob == expected[1].max()
    assert second.logprobs.top == ()
    assert third is not None
    assert third.logprobs is None


def test_row_that_is_not_finite_costs_only_itself() -> None:
    logits = LOGITS[:3].clone()
    logits[1, 7] = float("nan")
    rows = [SampleRow(p, new_generator(p)) for p in [SamplingParams(seed=1, num_logprobs=1)] * 3]
    first, broken, third = sample(logits, rows)
    assert broken is None
    assert first is not None
    assert third is not None
