"""`TokenText` → OpenAI's `logprobs.content` entries."""

from __future__ import annotations

from collections.abc import Sequence

from triptych.messages import TokenText

LOWEST_LOGPROB = -9999.0
"""What OpenAI writes for a probability of zero: JSON has no minus infinity."""


def logprobs_json(tokens: Sequence[TokenText]) -> dict[str, object]:
    content = [
        _entry(token.token, token.token_bytes, token.logprob) | {"top_logprobs": _top(token)}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _top(token: TokenText) -> list[dict[str, object]]:
    return [_entry(text, token_bytes, logprob) for text, token_bytes, logprob in token.top]


def _entry(text: str, token_bytes: bytes, logprob: float) -> dict[str, object]:
    finite = logprob if logprob > LOWEST_LOGPROB else LOWEST_LOGPROB
    return {"token": text, "logprob": finite, "bytes": list(token_bytes)}
