"""An engine process for tests: `python -m tests.language.engine_program DESCRIPTOR [refuse]`."""

from __future__ import annotations

import socket
import sys

from triptych.errors import CheckpointError
from triptych.language.process import report_startup_failure, serve_engine


def main() -> None:
    sock = socket.socket(fileno=int(sys.argv[1]))
    if "refuse" in sys.argv:
        report_startup_failure(sock, CheckpointError("no weights here"))
        return
    from tests.language.tiny import TinyLanguageModel, new_engine, qwen3

    serve_engine(new_engine(TinyLanguageModel(qwen3())), sock, load_report="tiny")


if __name__ == "__main__":
    main()
