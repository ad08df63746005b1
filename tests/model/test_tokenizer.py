from __future__ import annotations

import pytest
from model.tokenizer import SPECIAL_TOKENS, make_tokenizer


@pytest.mark.parametrize("text", ["plain", "é 日本語 🙂\n\n\ttabs  "])
def test_a_token_is_a_byte(text: str) -> None:
    tokenizer = make_tokenizer()
    ids = tokenizer.backend_tokenizer.encode(text).ids
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text


def test_special_tokens_are_single_tokens_behind_the_bytes() -> None:
    tokenizer = make_tokenizer()
    text = "".join(SPECIAL_TOKENS.values())
    ids = tokenizer.backend_tokenizer.encode(text).ids
    assert len(set(ids)) == len(SPECIAL_TOKENS)
    assert min(ids) >= 256
    assert len(tokenizer) == max(ids) + 1
