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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from triptych.errors import ConfigError

ChildKind = Literal["worker", "router", "engine"]
Spec = TypeVar("Spec")
_LENGTH_BYTES = 4
_MAX_PORT = 65_535
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
            # What a child that died at once never read is still in the buffer.
            with suppress(BrokenPipeError):
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


def read_spec(spec_type: type[Spec], pipe: int = 0) -> Spec:
    """The child's side of `spawn`: the frame on descriptor `pipe`."""
    length = int.from_bytes(_read_exactly(pipe, _LENGTH_BYTES), "big")
    return msgspec.msgpack.decode(_read_exactly(pipe, length), type=spec_type, dec_hook=_decode_path)


def stop_with_parent(pipe: int = 0) -> None:
    """From now on: when `pipe` ends, this process gets SIGTERM, and is gone for sure a while later."""

    def watch() -> None:
        # The bare descriptor: a buffered stream's lock in a daemon thread aborts the interpreter's exit.
        while os.read(pipe, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(_ORPHAN_GRACE_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _read_exactly(pipe: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(pipe, size - len(data))
        if not piece:
            raise ConfigError("the parent went away before it said what to do")
        data += piece
    return data


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket; port 0 picks a free one.

    Raises:
        ConfigError: the port is taken, or the address is not one of this machine's.
    """
    if not 0 <= port <= _MAX_PORT:
        raise ConfigError(f"cannot listen on port {port}: it must be between 0 and {_MAX_PORT}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise ConfigError(f"cannot listen: {error.strerror}") from error
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
