"""Child processes: how they are told what to be, noticed when they die, and never left behind.

A child reads its config as one frame from its standard input and then watches that pipe: when it closes, the
parent is gone, and the child stops. So nothing is orphaned even by SIGKILL. Secrets never appear in argv.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, TypeVar

import msgspec

ChildKind = Literal["worker", "router", "engine"]
Spec = TypeVar("Spec")
_LENGTH_BYTES = 4
_ORPHAN_GRACE_SECONDS = 15.0


@dataclass(slots=True)
class Child:
    """A running child. `stop` can be called twice."""

    name: str
    process: subprocess.Popen[bytes]

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def ask_to_stop(self) -> None:
        if self.alive:
            self.process.send_signal(signal.SIGTERM)

    def stop(self, grace_seconds: float) -> None:
        """SIGTERM, then SIGKILL if it takes longer than `grace_seconds`."""
        self.ask_to_stop()
        try:
            self.process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()


def spawn(name: str, kind: ChildKind, spec: object, sock: socket.socket) -> Child:
    """Start `python -m triptych child KIND`, which inherits `sock` and is told `spec`; closes our `sock`.

    `name` shows in ps.
    """
    argv = [sys.executable, "-m", "triptych", "child", kind, str(sock.fileno()), name]
    with sock:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            pass_fds=(sock.fileno(),),
            # A session of its own: Ctrl-C reaches the parent only, which stops its children in order.
            start_new_session=True,
        )
    child = Child(name, process)
    assert process.stdin is not None
    payload = msgspec.msgpack.encode(spec, enc_hook=_encode_path)
    try:
        process.stdin.write(len(payload).to_bytes(_LENGTH_BYTES, "big") + payload)
        process.stdin.flush()
    except BrokenPipeError:
        pass  # It died at once; whoever waits for it sees that.
    return child


def read_spec(spec_type: type[Spec], stream: IO[bytes]) -> Spec:
    """The child's side of `spawn`."""
    length = int.from_bytes(stream.read(_LENGTH_BYTES), "big")
    return msgspec.msgpack.decode(stream.read(length), type=spec_type, dec_hook=_decode_path)


def stop_with_parent(stream: IO[bytes]) -> None:
    """From now on: when `stream` ends, this process gets SIGTERM, and is gone for sure a while later."""

    def watch() -> None:
        stream.read()
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(_ORPHAN_GRACE_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket; port 0 picks a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.create_server((host, port), family=family, backlog=1024)
    sock.set_inheritable(True)
    return sock


def _encode_path(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(type(value).__name__)


def _decode_path(wanted: type, value: object) -> object:
    if issubclass(wanted, Path) and isinstance(value, str):
        return wanted(value)
    raise NotImplementedError(wanted.__name__)
