"""Token ids → the exact bytes they stand for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import cast

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from triptych.errors import UnsupportedModel

_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PRINTABLE = (*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100))
"""Bytes that GPT-2's alphabet writes as themselves; the others move behind U+0100, in order."""


class TokenBytes:
    """Bytes of the tokens of one tokenizer. Thread-safe.

    Raises:
        UnsupportedModel: the tokenizer is neither a byte-level nor a SentencePiece one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, backend: Tokenizer) -> None:
        self._token = cast(Callable[[int], str | None], backend.id_to_token)
        self._decode = _scheme(cast("dict[str, object]", json.loads(backend.to_str())))
        added = cast("Mapping[int, object]", tokenizer.added_tokens_decoder)
        specials = {id for id, token in added.items() if getattr(token, "special", False)}
        self._specials = frozenset(specials | set(tokenizer.all_special_ids))
        self._added = frozenset(added)

    def special(self, token_id: int) -> str | None:
        """The name of a special token; None for tokens that are text."""
        return self._token(token_id) if token_id in self._specials else None

    def __call__(self, token_id: int) -> bytes:
        """b"" for special tokens and for ids that no token has."""
        token = self._token(token_id)
        if token is None or token_id in self._specials:
            return b""
        return token.encode() if token_id in self._added else self._decode(token)


def _scheme(tokenizer: Mapping[str, object]) -> Callable[[str], bytes]:
    decoder = json.dumps(tokenizer.get("decoder"))
    if '"ByteLevel"' in decoder:
        return _byte_level
    if any(name in decoder for name in ('"ByteFallback"', '"Metaspace"')) or "\\u2581" in decoder:
        return _sentencepiece
    raise UnsupportedModel("the tokenizer is neither byte-level nor of SentencePiece's kind")


def _byte_of_character() -> Mapping[str, int]:
    moved = [byte for byte in range(256) if byte not in _PRINTABLE]
    return {chr(b): b for b in _PRINTABLE} | {chr(0x100 + i): b for i, b in enumerate(moved)}


_BYTES = _byte_of_character()


def _byte_level(token: str) -> bytes:
    return b"".join(bytes([_BYTES[c]]) if c in _BYTES else c.encode() for c in token)


def _sentencepiece(token: str) -> bytes:
    if match := _FALLBACK.fullmatch(token):
        return bytes.fromhex(match[1])
    return token.replace("▁", " ").encode()
