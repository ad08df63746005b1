from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.embeddings.handle import HandleSigner, same_metadata
from triptych.errors import EmbeddingUnavailable, InvalidHandle
from triptych.messages import EmbeddingRef, MetadataArray, SignedHandle, TensorRef

GRID = MetadataArray(name="image_grid_thw", shape=(1, 3), values=(1, 4, 6))
NOW = 1000.0


def handle(tenant: str = "", expires: float = NOW + 30) -> SignedHandle:
    tensor = TensorRef(
        key="k",
        namespace="n",
        dtype="float32",
        shape=(6, 8),
        size_bytes=192,
        transport="shm",
        address="a",
        lease_id="l",
        incarnation="i",
        generation=1,
    )
    ref = EmbeddingRef(key="k", modality="image", num_tokens=6, width=8, metadata=(GRID,), tensor=tensor)
    return SignedHandle(
        ref=ref, tenant=tenant, peer_host="127.0.0.1", peer_port=1, expires_unix_seconds=expires
    )


def test_a_signed_handle_comes_back_whole() -> None:
    signer = HandleSigner(b"s" * 32)
    assert signer.verify(signer.sign(handle()), "", NOW) == handle()


def test_another_clusters_handle_is_refused() -> None:
    text = HandleSigner(b"x" * 32).sign(handle())
    with pytest.raises(InvalidHandle, match="same secret"):
        HandleSigner(b"s" * 32).verify(text, "", NOW)


def test_another_tenants_handle_is_refused() -> None:
    signer = HandleSigner(b"s" * 32)
    with pytest.raises(InvalidHandle, match="another tenant"):
        signer.verify(signer.sign(handle(tenant="a")), "b", NOW)


def test_a_handle_whose_lease_is_over_asks_for_another_try() -> None:
    signer = HandleSigner(b"s" * 32)
    with pytest.raises(EmbeddingUnavailable, match="lease is over"):
        signer.verify(signer.sign(handle(expires=NOW - 1)), "", NOW)


@given(st.integers(min_value=0), st.integers(min_value=1, max_value=255))
def test_one_changed_byte_anywhere_is_noticed(position: int, change: int) -> None:
    signer = HandleSigner(b"s" * 32)
    raw = bytearray(base64.urlsafe_b64decode(signer.sign(handle())))
    raw[position % len(raw)] ^= change
    with pytest.raises(InvalidHandle):
        signer.verify(base64.urlsafe_b64encode(bytes(raw)).decode(), "", NOW)


@given(st.text())
def test_text_that_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(InvalidHandle):
        HandleSigner(b"s" * 32).verify(text, "", NOW)


def test_metadata_are_the_same_whatever_their_nesting() -> None:
    flat = MetadataArray(name="image_grid_thw", shape=(3,), values=(1, 4, 6))
    assert same_metadata((GRID,), (flat,))
    assert not same_metadata((GRID,), ())
    assert not same_metadata((GRID,), (MetadataArray(name="image_grid_thw", shape=(3,), values=(1, 4, 8)),))
