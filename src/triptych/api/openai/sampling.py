"""Sampling fields → `SamplingParams`; fields that would change the answer but are not served are refused."""

from __future__ import annotations

from triptych.api.openai.fields import Fields, Json, as_integer, as_text, wrong
from triptych.errors import InvalidRequest
from triptych.messages import SamplingParams

SEEDS = range(-(2**63), 2**64)
MAX_TOKENS = 2**31 - 1
MAX_TOP_K = 2**31 - 1
"""More than any vocabulary holds."""
MAX_STOP_TOKEN_IDS = 1024
NEUTRAL: dict[str, tuple[Json, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "logit_bias": ({},),
    "min_tokens": (0, 1),
    "tools": ([],),
    "functions": ([],),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}
"""Fields of OpenAI or vLLM that are not served, with the values under which ignoring them changes nothing."""


def parse_sampling(body: Fields) -> SamplingParams:
    """
    Raises:
        InvalidRequest: names the field.
    """
    _refuse_unsupported(body)
    temperature, top_p = body.number("temperature"), body.number("top_p")
    return SamplingParams(
        max_tokens=_max_tokens(body),
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=_top_k(body),
        seed=_seed(body),
        stop=_stop(body),
        stop_token_ids=_stop_token_ids(body),
        ignore_eos=body.flag("ignore_eos"),
        num_logprobs=_num_logprobs(body),
    )


def _refuse_unsupported(body: Fields) -> None:
    for name, neutral in NEUTRAL.items():
        value = body.values.get(name)
        if value is None or (name == "min_tokens" and body.flag("ignore_eos")):
            continue  # without an end token, output has its full length anyway
        # True == 1 in Python, but `"n": true` is not `"n": 1`.
        if isinstance(value, bool) or value not in neutral:
            raise InvalidRequest(f"{name} other than {_shown(neutral[0])} is not supported", param=name)


def _shown(value: Json) -> str:
    return "empty" if value in ({}, []) else str(value)


def _max_tokens(body: Fields) -> int | None:
    """`max_completion_tokens` is the newer name and wins."""
    for name in ("max_completion_tokens", "max_tokens"):
        value = body.integer(name)
        if value is not None:
            if value < 1:
                raise wrong(name, "at least 1")
            return min(value, MAX_TOKENS)
    return None


def _top_k(body: Fields) -> int:
    """-1 means all, as in vLLM."""
    value = body.integer("top_k")
    return 0 if value is None or value == -1 else min(value, MAX_TOP_K)


def _seed(body: Fields) -> int | None:
    seed = body.integer("seed")
    if seed is not None and seed not in SEEDS:
        raise wrong("seed", "a 64-bit integer")
    return seed


def _stop(body: Fields) -> tuple[str, ...]:
    value = body.values.get("stop")
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise wrong("stop", "a string or a list of strings")
    return tuple(as_text(element, path) for path, element in body.elements("stop"))


def _stop_token_ids(body: Fields) -> tuple[int, ...]:
    ids = tuple(as_integer(element, path) for path, element in body.elements("stop_token_ids"))
    if len(ids) > MAX_STOP_TOKEN_IDS or any(not 0 <= token_id < 2**31 for token_id in ids):
        raise wrong("stop_token_ids", f"a list of at most {MAX_STOP_TOKEN_IDS} token ids")
    return ids


def _num_logprobs(body: Fields) -> int | None:
    top = body.integer("top_logprobs")
    if not body.flag("logprobs"):
        if top:
            raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
        return None
    return top or 0
