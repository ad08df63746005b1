from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from triptych.errors import UnsupportedModel
from triptych.models.token_bytes import TokenBytes


def wrap(backend: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")


def token_bytes(tokenizer: PreTrainedTokenizerFast) -> TokenBytes:
    return TokenBytes(tokenizer, tokenizer.backend_tokenizer)


def byte_level() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(
        models.BPE(vocab={c: i for i, c in enumerate([*alphabet, "Ġa"])}, merges=[("Ġ", "a")])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return wrap(backend)


def sentencepiece() -> PreTrainedTokenizerFast:
    fallback = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocab = {**fallback, "▁": 256, "a": 257, "▁a": 258, "<unk>": 259}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "a")], byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return wrap(backend)


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
@pytest.mark.parametrize("text", ["a a  a", "é 日本 🙂", "\n\t a"])
def test_bytes_of_tokens_join_to_the_text(make: type[PreTrainedTokenizerFast], text: str) -> None:
    tokenizer = make()
    ids = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
    found = token_bytes(tokenizer)
    assert b"".join(found(i) for i in ids) == text.encode()


def test_every_byte_has_a_token_of_its_own() -> None:
    found = token_bytes(byte_level())
    assert {found(i) for i in range(256)} == {bytes([byte]) for byte in range(256)}


def test_special_tokens_give_no_bytes_and_other_added_ones_their_text() -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens(["<think> é"])
    found = token_bytes(tokenizer)
    think, end = (tokenizer.backend_tokenizer.token_to_id(token) for token in ("<think> é", "</s>"))
    assert think is not None
    assert end is not None
    assert (found(think), found.special(think)) == ("<think> é".encode(), None)
    assert (found(end), found.special(end)) == (b"", "</s>")


def test_ids_without_token_give_no_bytes() -> None:
    found = token_bytes(byte_level())
    assert (found(10_000), found.special(10_000)) == (b"", None)


def test_tokenizers_of_other_kinds_are_refused() -> None:
    backend = Tokenizer(models.WordPiece(vocab={"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedModel, match="neither byte-level"):
        token_bytes(wrap(backend))
