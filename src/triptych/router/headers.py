"""Which HTTP headers go through a proxy."""

from __future__ import annotations

from collections.abc import Iterable

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
REWRITTEN = frozenset(
    {"host", "content-length", "content-type", "accept-encoding", "expect", "date", "server"}
)
"""Set anew on either side. Without Accept-Encoding workers do not compress, so events pass as they are."""


def end_to_end(headers: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in headers if name.lower() not in HOP_BY_HOP | REWRITTEN)
