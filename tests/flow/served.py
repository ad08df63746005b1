"""Start the real thing in separate processes, talk to it over HTTP, and see what it leaves behind."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
START_SECONDS = 150.0
STOP_SECONDS = 30.0
REPLY_SECONDS = 120.0
JSON_HEADERS = {"content-type": "application/json"}
SECRET = "a secret for tests, long enough"


@dataclass(frozen=True)
class Served:
    """A running command that answers at `port`."""

    process: subprocess.Popen[bytes]
    port: int

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def get(self, path: str) -> tuple[int, bytes]:
        return _exchange(self.port, "GET", path, None)

    def post(self, body: Mapping[str, object]) -> tuple[int, dict[str, Any]]:
        status, raw = _exchange(self.port, "POST", "/v1/chat/completions", json.dumps(body).encode())
        return status, json.loads(raw)

    @contextmanager
    def stream(self, body: Mapping[str, object]) -> Generator[Iterator[bytes]]:
        """Lines of a streamed reply as they come; leaving the block closes the connection."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=REPLY_SECONDS)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body).encode(), JSON_HEADERS)
            reply = connection.getresponse()
            assert reply.status == 200, reply.read()
            yield iter(reply)
        finally:
            connection.close()


def free_port() -> int:
    with socket.create_server((HOST, 0)) as sock:
        return sock.getsockname()[1]


@contextmanager
def running(
    arguments: Sequence[str], port: int, environment: Mapping[str, str] | None = None, ready: int = 200
) -> Generator[Served]:
    """`triptych ARGUMENTS --port PORT`, from when /health answers `ready` until it has ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "triptych", *arguments, "--port", str(port)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
    )
    served = Served(process, port)
    try:
        wait_for_health(served, ready)
        yield served
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def wait_for_health(served: Served, status: int = 200) -> None:
    def answers() -> bool:
        assert served.process.poll() is None, "the process ended before it was ready"
        try:
            return served.get("/health")[0] == status
        except OSError:
            return False

    wait_until(answers, START_SECONDS)


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    """Poll a callable until it is true."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        pause.wait(0.05)


def serve(model: Path, layout: str, *options: str) -> Iterator[Served]:
    """Body of a fixture: `triptych serve MODEL --layout LAYOUT`."""
    port = free_port()
    with running(["serve", str(model), "--layout", layout, *options], port) as served:
        yield served


def descendants(pid: int) -> set[int]:
    """Process ids below `pid`, read from /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def listening_port(pid: int) -> int:
    """The TCP port on which a process listens, from its descriptors."""
    inodes = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
            return int(fields[1].partition(":")[2], 16)
    raise AssertionError(f"process {pid} listens nowhere")


def shared_memory_of(pids: set[int]) -> set[str]:
    """Our abstract sockets and the files in /dev/shm that these processes hold."""
    inodes = {os.readlink(fd) for pid in pids for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()}
    sockets = {name for inode, name in _triptych_sockets() if f"socket:[{inode}]" in inodes}
    mapped = {
        line.split()[5]
        for pid in pids
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
        if "/dev/shm/" in line
    }
    return sockets | mapped


def left_of(names: set[str]) -> set[str]:
    """Which of them are still there."""
    sockets = {name for _, name in _triptych_sockets()}
    return {name for name in names if name in sockets or Path(name).exists()}


def _triptych_sockets() -> list[tuple[str, str]]:
    """(inode, name) of every abstract socket of ours on the machine."""
    fields = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return [(f[6], f[7]) for f in fields if len(f) > 7 and f[7].startswith("@triptych")]


def _exchange(port: int, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=REPLY_SECONDS)
    try:
        connection.request(method, path, body, JSON_HEADERS)
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()
