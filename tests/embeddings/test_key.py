from __future__ import annotations

from triptych.embeddings.key import embedding_key


def test_every_part_of_an_encoding_changes_its_key() -> None:
    base = embedding_key("image", "digest", "options", "namespace", "tenant")
    others = {
        embedding_key("video", "digest", "options", "namespace", "tenant"),
        embedding_key("image", "digest2", "options", "namespace", "tenant"),
        embedding_key("image", "digest", "options2", "namespace", "tenant"),
        embedding_key("image", "digest", "options", "namespace2", "tenant"),
        embedding_key("image", "digest", "options", "namespace", "tenant2"),
    }
    assert len(others) == 5
    assert base not in others


def test_parts_cannot_be_shifted_into_each_other() -> None:
    assert embedding_key("image", "ab", "c", "n") != embedding_key("image", "a", "bc", "n")


def test_the_same_parts_give_the_same_key() -> None:
    assert embedding_key("audio", "d", "o", "n") == embedding_key("audio", "d", "o", "n")
    assert len(embedding_key("audio", "d", "o", "n")) == 64
