"""Runs in place of `triptych child KIND FD NAME`: a child without a model, named for what it does.

echo      says what it was told, and ends
stubborn  ignores SIGTERM
patient   waits until it is stopped or orphaned
any other answers its socket with HTTP 200; if its model is called "mute" never, if "broken" it ends at once,
          if "fragile" it ends after one answer, and from its second start on before that
engine    is "broken" or "mute" likewise; else it says that it is ready and answers every request with "A"

`parent SCRIPT` starts a patient child by SCRIPT, prints its process id, and waits.
"""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

import msgspec

from triptych.config import ModelConfig, RouterConfig, WorkerConfig
from triptych.language.link import FrameSplitter, frame
from triptych.launch.engine_spec import EngineSpec
from triptych.launch.processes import read_spec, spawn, stop_with_parent
from triptych.messages import EngineReady, GenerateRequest, StepOutput, TokenEvent

READY = EngineReady(
    max_context_tokens=100, kv_page_tokens=16, num_kv_pages=9, eos_token_ids=(0,), load_report=""
)
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
            if isinstance(spec, EngineSpec):
                generate(sock, spec.model.served_name)
            else:
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


def generate(sock: socket.socket, behaviour: str) -> None:
    if behaviour == "broken":
        return
    if behaviour == "mute":
        signal.pause()
    sock.sendall(frame(READY))
    splitter = FrameSplitter()
    while data := sock.recv(1 << 16):
        for body in splitter.feed(data):
            request = msgspec.msgpack.decode(body, type=GenerateRequest)
            event = TokenEvent(request_id=request.request_id, token_id=32, finish_reason="length")
            sock.sendall(frame(StepOutput(events=(event,), num_running=2, num_waiting=3, kv_usage=0.5)))


if __name__ == "__main__":
    main()
