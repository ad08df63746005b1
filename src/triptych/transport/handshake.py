"""Who may connect: the same user (the kernel says so), with the same token (each side proves it knows it)."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import struct
import sys
from typing import Final, Literal

from triptych.errors import ConfigError

Side = Literal["consumer", "producer"]
_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid


def require_linux() -> None:
    """
    Raises:
        ConfigError: this system has no memfd or no abstract sockets.
    """
    if sys.platform != "linux":
        raise ConfigError(f"transport shm needs Linux; this is {sys.platform}")


def new_nonce() -> bytes:
    return secrets.token_bytes(32)


def proof(token: bytes, side: Side, nonce: bytes) -> bytes:
    """What `side` answers to `nonce`. The side is in it so that an answer cannot be mirrored back."""
    return hmac.digest(token, b"triptych-shm-" + side.encode() + nonce, hashlib.sha256)


def proves(answer: bytes, token: bytes, side: Side, nonce: bytes) -> bool:
    return hmac.compare_digest(answer, proof(token, side, nonce))


def is_same_user(connection: socket.socket) -> bool:
    """Whether the other end belongs to our user."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    return uid == os.geteuid()
