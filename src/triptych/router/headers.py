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
    """Those that may be passed on, names in lower case."""
    lowered = ((name.lower(), value) for name, value in headers)
    return tuple(pair for pair in lowered if pair[0] not in HOP_BY_HOP | REWRITTEN)
