"""Logits → tokens. Greedy rows cost one argmax; only rows that sample or want log-probabilities cost more."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from triptych.messages import SamplingParams, TokenLogprobs

_SMALLEST = 1e-30
"""Temperatures and shares below this would be 0 in float32: no number to divide by, nothing to draw from."""


@dataclass(frozen=True, slots=True)
class SampleRow:
    """How one row is sampled; `generator` None: greedily."""

    params: SamplingParams
    generator: torch.Generator | None


@dataclass(frozen=True, slots=True)
class Sampled:
    token_id: int
    logprobs: TokenLogprobs | None


def new_generator(params: SamplingParams) -> torch.Generator | None:
    """The request's own randomness, so that its draws do not depend on the batch; None if it is greedy."""
    if params.temperature == 0:
        return None
    seed = secrets.randbits(63) if params.seed is None else params.seed
    return torch.Generator().manual_seed(seed % 2**63)


def sample(logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[Sampled | None]:
    """The next token of each row of `logits` [k, vocab] float32; None where the logits are not finite."""
    peaks, tokens = logits.max(dim=-1)
    finite = torch.isfinite(peaks).tolist()
    drawing = [index for index, row in enumerate(rows) if row.generator is not None and finite[index]]
    chosen: list[int] = tokens.tolist()
    for index, token in zip(drawing, _draw(logits, rows, drawing), strict=True):
        chosen[index] = token
    logprobs = _logprobs(logits, rows, chosen)
    return [Sampled(chosen[i], logprobs.get(i)) if finite[i] else None for i in range(len(rows))]


def _draw(logits: torch.Tensor, rows: Sequence[SampleRow], drawing: Sequence[int]) -> list[int]:
    """Inverse transform sampling: one uniform number a row, from the row's generator."""
    if not drawing:
        return []
    params = [rows[index].params for index in drawing]
    uniform = torch.cat([torch.rand(1, generator=rows[index].generator) for index in drawing])
    temperatures = torch.tensor([max(p.temperature, _SMALLEST) for p in params])[:, None]
    temperatures = temperatures.to(logits.device)
    picked = logits[list(drawing)]
    # Relative to the peak, so that a temperature near 0 gives 0 and -inf instead of inf - inf.
    probs = ((picked - picked.amax(-1, keepdim=True)) / temperatures).softmax(-1)
    uniform = uniform.to(logits.device)
    free = [i for i, p in enumerate(params) if p.top_k == 0 and p.top_p == 1]
    cut = [i for i, p in enumerate(params) if p.top_k > 0 or p.top_p < 1]
    tokens = [0] * len(params)
    if free:
        for i, token in zip(free, _invert(probs[free].cumsum(-1), uniform[free]).tolist(), strict=True):
            tokens[i] = token
    if cut:
        cut_params = [params[i] for i in cut]
        for i, token in zip(cut, _draw_cut(probs[cut], uniform[cut], cut_params), strict=True):
            tokens[i] = token
    return tokens


def _draw_cut(probs: torch.Tensor, uniform: torch.Tensor, params: Sequence[SamplingParams]) -> list[int]:
    """First the `top_k` likeliest tokens, then of those the smallest set that holds `top_p` of their mass."""
    vocab = probs.shape[-1]
    top_k = torch.tensor([min(p.top_k, vocab) or vocab for p in params], device=probs.device)[:, None]
    top_p = torch.tensor([max(p.top_p, _SMALLEST) for p in params], device=probs.device)[:, None]
    ranked, token_ids = probs.topk(int(top_k.max()), dim=-1)
    ranked = ranked.masked_fill(torch.arange(ranked.shape[-1], device=probs.device) >= top_k, 0)
    mass = ranked.cumsum(-1)
    ranked = ranked.masked_fill(mass - ranked >= top_p * mass[:, -1:], 0)
    places = _invert(ranked.cumsum(-1), uniform)
    return token_ids.gather(-1, places[:, None])[:, 0].tolist()


def _invert(mass: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """[k] index of the first entry whose cumulative `mass` [k, n] exceeds its share `uniform` of the total.

    Entries without mass are never chosen: theirs equals their predecessor's.
    """
    total = mass[:, -1:]
    target = (uniform[:, None] * total).clamp(max=torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(mass, target, right=True)[:, 0]


def _logprobs(
    logits: torch.Tensor, rows: Sequence[SampleRow], chosen: Sequence[int]
) -> dict[int, TokenLogprobs]:
    """By row, for those that want them; from the logits as the model gave them."""
    wanted = [index for index, row in enumerate(rows) if row.params.num_logprobs is not None]
    if not wanted:
        return {}
    logprobs = logits[wanted].log_softmax(-1)
    most = min(max(rows[index].params.num_logprobs or 0 for index in wanted), logits.shape[-1])
    values, tokens = (top.tolist() for top in logprobs.topk(most, dim=-1))
    own = logprobs[range(len(wanted)), [chosen[index] for index in wanted]].tolist()
    found: dict[int, TokenLogprobs] = {}
    for place, index in enumerate(wanted):
        count = rows[index].params.num_logprobs or 0
        top = tuple(zip(tokens[place][:count], values[place][:count], strict=True))
        found[index] = TokenLogprobs(logprob=own[place], top=top)
    return found
