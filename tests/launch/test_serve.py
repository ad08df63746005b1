"""All processes of a layout start together, stop together, and are started again when they die."""

from __future__ import annotations

import io
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from tests.flow.served import descendants, is_running, listening_port, wait_until
from tests.launch.acting import SECONDS, run_while
from triptych.config import Layout, ModelConfig, RouterConfig, ServerConfig
from triptych.errors import ConfigError, StartupError
from triptych.launch.processes import listen
from triptych.launch.serve import Member, ServeConfig, serve, start_layout

SECRET = b"0123456789abcdef"


def config(
    model: Path,
    layout: Layout = "none",
    name: str = "tiny",
    num_encode: int = 1,
    startup_seconds: float = SECONDS,
) -> ServeConfig:
    return ServeConfig(
        model=ModelConfig(path=model, served_name=name),
        secret=SECRET,
        layout=layout,
        server=ServerConfig(port=0, drain_seconds=5.0),
        num_encode=num_encode,
        startup_seconds=startup_seconds,
    )


def children() -> dict[str, int]:
    """Process ids of our children by the name at the end of their command lines."""
    found: dict[str, int] = {}
    for pid in descendants(os.getpid()):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        if "child" in words and is_running(pid):
            found[words[-2]] = pid
    return found


class Screen:
    """What `serve` prints."""

    def __init__(self) -> None:
        self._text = io.StringIO()
        self.console = Console(file=self._text, width=150)

    @property
    def text(self) -> str:
        return self._text.getvalue()

    def wait_until_ready(self) -> None:
        wait_until(lambda: "ready " in self.text, SECONDS)


def serve_while(wanted: ServeConfig, screen: Screen, act: Callable[[], None]) -> None:
    run_while(lambda: serve(wanted, screen.console), act)


@pytest.mark.usefixtures("stand_in", "own_signals")
def test_a_layout_starts_says_where_it_is_and_stops_as_a_whole(tmp_path: Path) -> None:
    screen = Screen()
    family: dict[str, int] = {}

    def act() -> None:
        screen.wait_until_ready()
        family.update(children())
        port = listening_port(family["router"])
        assert f"ready  http://127.0.0.1:{port}/v1  (model tiny)" in screen.text

    serve_while(config(tmp_path, "e+pd", num_encode=2), screen, act)
    assert set(family) == {"encode 1", "encode 2", "prefill-decode 1", "router"}
    assert not any(is_running(pid) for pid in family.values())


@pytest.mark.usefixtures("stand_in", "own_signals")
def test_one_address_is_one_process(tmp_path: Path) -> None:
    screen = Screen()
    family: dict[str, int] = {}

    def act() -> None:
        screen.wait_until_ready()
        family.update(children())

    serve_while(config(tmp_path), screen, act)
    assert set(family) == {"server"}


@pytest.mark.usefixtures("stand_in", "own_signals")
def test_a_process_that_dies_is_started_again_at_its_port(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    screen = Screen()

    def act() -> None:
        screen.wait_until_ready()
        dead = children()["encode 1"]
        port = listening_port(dead)
        os.kill(dead, signal.SIGKILL)
        wait_until(lambda: children().get("encode 1", dead) != dead, SECONDS)
        assert listening_port(children()["encode 1"]) == port

    serve_while(config(tmp_path, "e+pd"), screen, act)
    assert "encode 1 died; starting it again" in caplog.text


@pytest.mark.usefixtures("stand_in", "own_signals")
def test_a_process_that_dies_over_and_over_ends_everything(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="server keeps dying"):
        serve(config(tmp_path, name="fragile"), Screen().console)
    assert children() == {}


@pytest.mark.usefixtures("stand_in", "own_signals")
def test_a_process_that_is_not_ready_in_time_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"not ready in time: server$"):
        serve(config(tmp_path, name="mute", startup_seconds=0.1), Screen().console)
    assert children() == {}


@pytest.mark.usefixtures("stand_in", "own_signals")
def test_a_signal_while_starting_stops_everything(tmp_path: Path) -> None:
    screen = Screen()

    def act() -> None:
        wait_until(lambda: "server" in children(), SECONDS)

    serve_while(config(tmp_path, name="mute"), screen, act)
    assert "ready" not in screen.text
    assert children() == {}


@pytest.mark.usefixtures("stand_in", "own_signals")
def test_a_process_that_ends_while_starting_ends_everything(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"(encode|prefill-decode) 1 could not start"):
        serve(config(tmp_path, "e+pd", name="broken"), Screen().console)
    assert children() == {}


def test_a_taken_port_starts_nothing(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as sock:
        taken = ServerConfig(port=sock.getsockname()[1])
        members: list[Member] = []
        with pytest.raises(ConfigError, match="in use"):
            start_layout(ServeConfig(ModelConfig(tmp_path, "tiny"), SECRET, server=taken), members)
    assert members == []


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("", "http://127.0.0.1:80"),
        ("gpu7.example.com", "http://gpu7.example.com:80"),
        ("::1", "http://[::1]:80"),
        ("::", "http://[::1]:80"),
    ],
)
def test_a_url_leads_to_wherever_a_process_listens(host: str, url: str) -> None:
    assert member(host, 80).url == url


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_health_is_asked_at_the_address_itself(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with listen(host, 0) as sock:
        one = member(host, sock.getsockname()[1])
        thread = threading.Thread(target=_answer_once, args=(sock, b"200 OK"))
        thread.start()
        assert one.healthy()
        thread.join(SECONDS)


@pytest.mark.parametrize("status", [b"503 Service Unavailable", b"nonsense"])
def test_a_process_that_says_anything_else_is_not_healthy(status: bytes) -> None:
    with listen("127.0.0.1", 0) as sock:
        thread = threading.Thread(target=_answer_once, args=(sock, status))
        thread.start()
        assert not member("127.0.0.1", sock.getsockname()[1]).healthy()
        thread.join(SECONDS)


def test_nobody_listening_is_not_healthy() -> None:
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
    assert not member("127.0.0.1", port).healthy()


@pytest.mark.parametrize(
    ("seconds_ago", "often"), [((3, 2, 1), False), ((4, 3, 2, 1), True), ((90, 3, 2, 1), False)]
)
def test_four_starts_in_a_minute_are_too_many(seconds_ago: tuple[int, ...], often: bool) -> None:
    one = member("127.0.0.1", 80)
    one.started_at = [time.monotonic() - seconds for seconds in seconds_ago]
    assert one.restarts_too_often == often


def member(host: str, port: int) -> Member:
    return Member("router", "router", RouterConfig((), (), server=ServerConfig(host=host, port=port)))


def _answer_once(listener: socket.socket, status: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\n\r\n")
