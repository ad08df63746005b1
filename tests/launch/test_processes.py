"""Children are told what to be, seen to die, and never left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.flow.served import is_running, wait_until
from triptych.config import (
    FetchConfig,
    LanguageConfig,
    MediaConfig,
    ModelConfig,
    RouterConfig,
    TransportConfig,
    WorkerConfig,
)
from triptych.errors import ConfigError
from triptych.launch.engine_spec import EngineSpec
from triptych.launch.processes import Child, ChildKind, listen, read_spec, spawn

SECRET = b"a secret that must not show"
MODEL = ModelConfig(path=Path("/models/some model"), served_name="x")
WORKER = WorkerConfig(
    role="encode",
    model=MODEL,
    secret=SECRET,
    media=MediaConfig(fetch=FetchConfig(allowed_networks=("10.0.0.0/8",), file_root=Path("/media"))),
)
SECONDS = 20.0


@contextmanager
def started(
    name: str, kind: ChildKind = "router", spec: object = None
) -> Generator[tuple[Child, socket.socket]]:
    """A child of that name, and our end of its socket."""
    ours, theirs = socket.socketpair()
    ours.settimeout(SECONDS)
    child = spawn(name, kind, spec or RouterConfig((), ()), theirs)
    with ours:
        try:
            yield child, ours
        finally:
            child.process.kill()
            child.stop(SECONDS)


def said(sock: socket.socket) -> str:
    """Everything until the other end closes."""
    with sock.makefile("r") as file:
        return file.read()


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("worker", WORKER),
        ("worker", replace(WORKER, secret=bytes(range(256)))),
        ("router", RouterConfig(("http://a",), ("http://b", "http://c"))),
        ("engine", EngineSpec(MODEL, LanguageConfig(max_running=3), TransportConfig(), SECRET)),
    ],
)
@pytest.mark.usefixtures("stand_in")
def test_a_child_is_told_exactly_what_the_parent_means(kind: ChildKind, spec: object) -> None:
    with started("echo", kind, spec) as (child, sock):
        assert said(sock) == repr(spec)
        assert child.process.wait(SECONDS) == 0
        assert not child.alive


@pytest.mark.usefixtures("stand_in")
def test_secrets_are_in_neither_the_command_line_nor_the_environment() -> None:
    with started("patient", "worker", WORKER) as (child, sock):
        assert sock.recv(16) == b"ready"
        process = Path(f"/proc/{child.process.pid}")
        command = (process / "cmdline").read_bytes()
        assert command.endswith(b"\0patient\0")
        assert SECRET not in command + (process / "environ").read_bytes()


@pytest.mark.usefixtures("stand_in")
def test_stopping_asks_first_and_may_be_repeated() -> None:
    with started("patient") as (child, sock):
        assert sock.recv(16) == b"ready"
        assert child.alive
        child.stop(SECONDS)
        child.stop(SECONDS)
        assert child.process.returncode == -signal.SIGTERM


@pytest.mark.usefixtures("stand_in")
def test_a_child_that_does_not_listen_is_killed() -> None:
    with started("stubborn") as (child, sock):
        assert sock.recv(16) == b"ready"
        child.stop(0.1)
        assert child.process.returncode == -signal.SIGKILL


@pytest.mark.usefixtures("stand_in")
def test_a_child_gets_no_keyboard_interrupts() -> None:
    with started("patient") as (child, sock):
        assert sock.recv(16) == b"ready"
        assert os.getsid(child.process.pid) == child.process.pid


def test_a_child_ends_when_its_parent_is_killed(stand_in: Path) -> None:
    command = [str(stand_in), "parent", str(stand_in)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()
        wait_until(lambda: not is_running(pid), SECONDS)


def test_a_child_that_died_before_it_was_told_anything_can_be_stopped() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE)
    process.wait(SECONDS)
    assert process.stdin is not None
    process.stdin.write(b"never read")
    child = Child("short", process)
    child.stop(SECONDS)
    assert not child.alive
    assert process.stdin.closed


@pytest.mark.parametrize("told", [b"", b"\0\0", b"\0\0\0\7half"])
def test_a_parent_that_goes_away_in_the_middle_is_noticed(told: bytes) -> None:
    reading, writing = os.pipe()
    os.write(writing, told)
    os.close(writing)
    try:
        with pytest.raises(ConfigError, match="parent"):
            read_spec(RouterConfig, reading)
    finally:
        os.close(reading)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_port_0_picks_a_free_port(host: str) -> None:
    with listen(host, 0) as sock:
        port = sock.getsockname()[1]
        assert port > 0
        with socket.create_connection((host, port), SECONDS):
            pass


def test_a_taken_port_is_named() -> None:
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(ConfigError, match=f"in use.*{port}"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70_000), ("192.0.2.1", 0)])
def test_an_address_that_cannot_be_listened_on_is_refused(host: str, port: int) -> None:
    with pytest.raises(ConfigError, match="cannot listen"):
        listen(host, port)
