from __future__ import annotations

import math

from triptych.api.openai.logprobs import logprobs_json
from triptych.messages import TokenText


def test_tokens_have_openais_shape() -> None:
    token = TokenText(
        token="é", token_bytes="é".encode(), logprob=-0.5, top=(("é", "é".encode(), -0.5), ("e", b"e", -1))
    )
    assert logprobs_json([token]) == {
        "content": [
            {
                "token": "é",
                "logprob": -0.5,
                "bytes": [195, 169],
                "top_logprobs": [
                    {"token": "é", "logprob": -0.5, "bytes": [195, 169]},
                    {"token": "e", "logprob": -1, "bytes": [101]},
                ],
            }
        ],
        "refusal": None,
    }


def test_an_impossible_token_has_a_finite_logprob() -> None:
    for logprob in (-math.inf, math.nan):
        token = TokenText(token="a", token_bytes=b"a", logprob=logprob)
        content = logprobs_json([token])["content"]
        assert content == [{"token": "a", "logprob": -9999.0, "bytes": [97], "top_logprobs": []}]
