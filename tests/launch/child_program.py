"""Runs in place of `triptych child KIND FD NAME`: a child without a model, named for what it does.

echo      says what it was told, and ends
stubborn  ignores SIGTERM
patient   waits until it is stopped or orphaned
any other answers its socket with HTTP 200; if its model is called "mute" never, if "broken" it ends at once,
          if "fragile" it ends after one answer, and from its second start on before that

`parent SCRIPT` starts a patient child by SCRIPT, prints its process id, and waits.
"""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

from triptych.config import ModelConfig, RouterConfig, WorkerConfig
from triptych.launch.engine_spec import EngineSpec
from triptych.launch.processes import read_spec, spawn, stop_with_parent

SPECS: dict[str, type[WorkerConfig] | type[RouterConfig] | type[EngineSpec]] = {
    "worker": WorkerConfig,
    "router": RouterConfig,
    "engine": EngineSpec,
}
STARTED_BEFORE = "started-before"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


def main() -> None:
    if sys.argv[1] == "parent":
        parent(sys.argv[2])
    kind, descriptor, name = sys.argv[4:]
    with socket.socket(fileno=int(descriptor)) as sock:
        if name == "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        spec = read_spec(SPECS[kind])
        if name == "echo":
            sock.sendall(repr(spec).encode())
        elif name in ("stubborn", "patient"):
            stop_with_parent()
            sock.sendall(b"ready")
            signal.pause()
        else:
            stop_with_parent()
            answer(sock, spec.model if isinstance(spec, WorkerConfig) else None)


def parent(script: str) -> None:
    sys.executable = script
    ours, theirs = socket.socketpair()
    child = spawn("patient", "router", RouterConfig((), ()), theirs)
    assert ours.recv(16) == b"ready"
    print(child.process.pid, flush=True)
    signal.pause()


def answer(listener: socket.socket, model: ModelConfig | None) -> None:
    behaviour = "" if model is None else model.served_name
    if model is not None and behaviour == "fragile" and (model.path / STARTED_BEFORE).exists():
        return
    if behaviour == "broken":
        return
    if behaviour == "mute":
        signal.pause()
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(OK)
        if model is not None and behaviour == "fragile":
            Path(model.path / STARTED_BEFORE).touch()
            return


if __name__ == "__main__":
    main()
