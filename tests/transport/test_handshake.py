from __future__ import annotations

import os
import socket

import pytest

from triptych.transport import handshake

TOKEN = b"token"


def test_proof_of_the_same_token_side_and_nonce_convinces() -> None:
    nonce = handshake.new_nonce()

    assert handshake.proves(handshake.proof(TOKEN, "consumer", nonce), TOKEN, "consumer", nonce)


def test_other_token_side_or_nonce_does_not_convince() -> None:
    nonce = handshake.new_nonce()
    answer = handshake.proof(TOKEN, "consumer", nonce)

    assert not handshake.proves(answer, b"other", "consumer", nonce)
    assert not handshake.proves(answer, TOKEN, "producer", nonce)
    assert not handshake.proves(answer, TOKEN, "consumer", handshake.new_nonce())
    assert not handshake.proves(b"", TOKEN, "consumer", nonce)


def test_token_is_not_in_the_proof() -> None:
    assert TOKEN not in handshake.proof(TOKEN, "consumer", handshake.new_nonce())


def test_only_our_own_user_is_the_same_user(monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        assert handshake.is_same_user(left)
        monkeypatch.setattr(os, "geteuid", lambda: 2**31 - 2)
        assert not handshake.is_same_user(left)
