"""A worker in a process of its own, to be killed: `python -m tests.router.worker_program streaming|silent`.

Prints its port, then "busy" for every request. "streaming" says one word and then nothing, "silent" nothing.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import contextmanager

import uvicorn

from tests.api.services import EndlessChat
from tests.api.serving import WAIT_SECONDS, chat_app
from triptych.messages import ChatEvent, ChatRequest, TextDelta


@contextmanager
def worker_process(kind: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """(process, URL)"""
    command = [sys.executable, "-m", "tests.router.worker_program", kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()
            process.wait(WAIT_SECONDS)


class AnnouncedChat:
    def __init__(self, events: Sequence[ChatEvent]) -> None:
        self._service = EndlessChat(events)

    def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        print("busy", flush=True)
        return self._service.chat(request)


def main(kind: str) -> None:
    events = [TextDelta(text="word")] if kind == "streaming" else []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        server = uvicorn.Server(uvicorn.Config(chat_app(AnnouncedChat(events)), log_level="error", ws="none"))
        server.run(sockets=[listener])


if __name__ == "__main__":
    main(sys.argv[1])
