"""Runs in place of `triptych serve MODEL --layout LAYOUT --port PORT`: answers with a word of the picture.

A model called "broken" does not start; one called "unequal" answers differently in each layout.
"""

from __future__ import annotations

import hashlib
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route


def answering(salt: str, seen: list[str] | None = None) -> Starlette:
    """The application; `seen` collects the pictures' URLs."""

    async def answer(request: Request) -> Response:
        body = await request.json()
        url = str(body["messages"][0]["content"][0]["image_url"]["url"])
        if seen is not None:
            seen.append(url)
        word = hashlib.sha256((salt + url).encode()).hexdigest()
        return StreamingResponse(_events(word), media_type="text/event-stream")

    async def health(request: Request) -> Response:
        return Response()

    return Starlette(
        routes=[Route("/health", health), Route("/v1/chat/completions", answer, methods=["POST"])]
    )


def _events(word: str) -> Iterator[bytes]:
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    for event in (
        {"choices": [{"delta": {"content": word}}]},
        {"choices": [], "usage": usage},
    ):
        yield b"data: " + json.dumps(event).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


def main() -> None:
    *_, model, _, layout, _, port = sys.argv
    name = Path(model).name
    if name == "broken":
        return
    with socket.create_server(("127.0.0.1", int(port))) as listener:
        app = answering(layout if name == "unequal" else "")
        uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none")).run(sockets=[listener])


if __name__ == "__main__":
    main()
