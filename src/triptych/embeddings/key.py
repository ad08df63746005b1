"""The identity of an encoding."""

from __future__ import annotations

import hashlib

import msgspec

from triptych.messages import Modality

SCHEMA_VERSION = 1
"""Raise it when the meaning of a stored embedding changes (row packing, metadata names)."""


def embedding_key(
    modality: Modality, source_digest: str, options_digest: str, namespace: str, tenant: str = ""
) -> str:
    """Digest (64 hex digits) of everything that changes an encoder's output for one item.

    Of the source bytes, not of decoded pixels: a hit must skip decode, process and encode. `options_digest`
    covers decoding, frame sampling and processing, `namespace` the encoder's weights and dtype. Each part is
    length-prefixed, so that no two combinations share a digest.
    """
    parts = (SCHEMA_VERSION, modality, source_digest, options_digest, namespace, tenant)
    return hashlib.sha256(msgspec.msgpack.encode(parts)).hexdigest()
