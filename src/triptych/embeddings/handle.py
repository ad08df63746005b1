"""Handles: references that survive any router and that no client can forge."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

import msgspec

from triptych.errors import EmbeddingUnavailable, InvalidHandle, TriptychError
from triptych.messages import Metadata, SignedHandle

_DIGEST_BYTES = hashlib.sha256().digest_size


class HandleSigner:
    """Signs and verifies handles with the cluster secret (HMAC-SHA256). Thread-safe."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(SignedHandle)

    def sign(self, handle: SignedHandle) -> str:
        """An opaque URL-safe string."""
        payload = self._encoder.encode(handle)
        return base64.urlsafe_b64encode(self._digest(payload) + payload).decode()

    def verify(self, text: str, tenant: str, now_unix_seconds: float) -> SignedHandle:
        """The handle, if this cluster signed it for this tenant and it is still valid.

        Raises:
            InvalidHandle: forged, damaged, or made for another tenant.
            EmbeddingUnavailable: genuine, but its lease is over.
        """
        handle = self._open(text)
        if handle.tenant != tenant:
            raise InvalidHandle("the handle belongs to another tenant")
        if handle.expires_unix_seconds < now_unix_seconds:
            raise EmbeddingUnavailable("the embedding's lease is over; encode the item again")
        return handle

    def _open(self, text: str) -> SignedHandle:
        try:
            raw = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError) as error:
            raise InvalidHandle("the handle is not one of ours: copy it unchanged") from error
        signature, payload = raw[:_DIGEST_BYTES], raw[_DIGEST_BYTES:]
        if not hmac.compare_digest(signature, self._digest(payload)):
            raise InvalidHandle("the handle was not signed by this cluster: all workers need the same secret")
        try:
            return self._decoder.decode(payload)
        except (msgspec.DecodeError, TriptychError) as error:
            raise InvalidHandle("the handle was made by an incompatible version") from error

    def _digest(self, payload: bytes) -> bytes:
        return hmac.digest(self._secret, payload, "sha256")


def same_metadata(left: Metadata, right: Metadata) -> bool:
    """Equal names and flat values: routers may flatten nested arrays, so shapes do not count."""
    return {a.name: a.values for a in left} == {a.name: a.values for a in right}
