"""What users type: arguments become configs, and mistakes one clear line."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from tests.api.client import get
from tests.flow.served import free_port, wait_until
from triptych.bench.serve import ServeBench
from triptych.cli import main
from triptych.config import SECRET_VARIABLE, FetchConfig, RouterConfig, ServerConfig, WorkerConfig
from triptych.launch.processes import listen, spawn
from triptych.launch.serve import ServeConfig

SECONDS = 30.0
SECRET = "a secret of enough bytes"
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Call `triptych ARGUMENTS` in this process: its exit status and what it printed."""
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)

    def call(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["triptych", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        captured = capsys.readouterr()
        code = exit_.value.code
        assert isinstance(code, int | None)
        return code or 0, captured.out + captured.err

    return call


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "some-model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    return directory


def test_help_names_the_commands(run: Run) -> None:
    status, printed = run("--help")
    assert status == 0
    for command in ("serve", "worker", "route", "bench"):
        assert command in printed
    assert "child" not in printed


@pytest.mark.parametrize("name", ["missing", "[bold]", "x[/b]"])
def test_a_model_that_is_not_there_is_named_in_one_line(run: Run, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for arguments in (("serve", path), ("worker", path, "--role", "all", "--port", 0)):
        status, printed = run(*arguments)
        assert status == 1
        assert printed == f"error {path} is not a directory: give a checkpoint directory with config.json\n"


def test_a_directory_without_a_config_is_no_model(run: Run, tmp_path: Path) -> None:
    status, printed = run("serve", tmp_path)
    assert status == 1
    assert printed == f"error {tmp_path} holds no config.json: give a checkpoint directory\n"


@pytest.mark.parametrize("role", ["encode", "prefill-decode"])
def test_a_worker_of_a_layout_needs_the_secret(run: Run, model: Path, role: str) -> None:
    status, printed = run("worker", model, "--role", role)
    assert status == 1
    assert "--secret-file" in printed
    assert SECRET_VARIABLE in printed


def test_a_short_secret_is_refused(run: Run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("short\n")
    status, printed = run("worker", model, "--role", "encode", "--secret-file", tmp_path / "secret")
    assert status == 1
    assert "5 bytes" in printed
    assert "short" not in printed


def test_a_taken_port_is_named(run: Run, model: Path) -> None:
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        for arguments in (
            ("route", "--prefill-decode", "http://127.0.0.1:1"),
            ("worker", model, "--role", "all"),
            ("serve", model),
        ):
            status, printed = run(*arguments, "--port", port)
            assert status == 1
            assert "Address already in use" in printed
            assert str(port) in printed
            assert "Traceback" not in printed


@pytest.mark.parametrize("option", ["--threads", "--encode-workers", "--prefill-decode-workers"])
def test_none_of_something_that_is_needed_is_refused(run: Run, model: Path, option: str) -> None:
    status, printed = run("serve", model, "--layout", "e+pd", option, 0)
    assert status == 2
    assert option in printed


@pytest.mark.parametrize("peer", ["x", "x=http://a", "=http://a,m", "x=,m", "x=http://a,"])
def test_a_peer_that_says_too_little_is_refused(run: Run, model: Path, peer: str) -> None:
    status, printed = run("bench", "serve", model, "--peer", peer)
    assert status == 1
    assert printed == f"error --peer {peer}: write NAME=URL,MODEL\n"


def test_an_unknown_kind_of_child_is_refused(run: Run) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        status, printed = run("child", "nonsense", theirs.detach(), "name")
    assert status == 1
    assert "nonsense" in printed


def test_serve_shares_out_the_cores_and_makes_a_secret(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[ServeConfig] = []

    def keep(config: ServeConfig, console: Console) -> None:
        got.append(config)

    monkeypatch.setattr("triptych.launch.serve.serve", keep)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    status, _ = run("serve", model, "--port", 81)
    assert status == 0
    layout = ("--layout", "e+pd", "--encode-workers", 3, "--dtype", "bfloat16", "--served-model-name", "m")
    run("serve", model, *layout)
    run("serve", model, "--threads", 5)
    one, apart, told = got
    assert (one.layout, one.server, one.model.num_threads) == ("none", ServerConfig(port=81), 4)
    assert (one.model.path, one.model.served_name) == (model, "some-model")
    assert (apart.layout, apart.num_encode, apart.num_prefill_decode) == ("e+pd", 3, 1)
    assert (apart.model.dtype, apart.model.served_name, apart.model.num_threads) == ("bfloat16", "m", 2)
    assert told.model.num_threads == 5
    assert len({config.secret for config in got}) == 3


def test_worker_arguments_become_its_config(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[WorkerConfig] = []

    def keep(config: WorkerConfig, listener: socket.socket, on_ready: Callable[[], None]) -> None:
        with listener:
            assert listener.getsockname()[1] == config.server.port
        got.append(config)
        on_ready()

    monkeypatch.setattr("triptych.launch.worker.run_worker", keep)
    (tmp_path / "secret").write_text(SECRET + "\n")
    options = ("--role", "encode", "--port", 0, "--secret-file", tmp_path / "secret")
    media = ("--media-file-root", tmp_path, "--media-allow-host", "a.example")
    networks = ("--media-allow-network", "10.0.0.0/8", "--media-allow-network", "fd00::/8")
    code, printed = run("worker", model, *options, *media, *networks)
    (config,) = got
    assert (code, printed) == (
        0,
        f"ready  http://127.0.0.1:{config.server.port}  (encode worker of {config.model.served_name})\n",
    )
    assert (config.role, config.secret) == ("encode", SECRET.encode())
    assert config.media.fetch == FetchConfig(
        allowed_hosts=("a.example",),
        allowed_networks=("10.0.0.0/8", "fd00::/8"),
        file_root=tmp_path,
    )


def test_a_secret_may_come_from_the_environment(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[bytes] = []

    def keep(config: WorkerConfig, listener: socket.socket, on_ready: Callable[[], None]) -> None:
        listener.close()
        got.append(config.secret)

    monkeypatch.setattr("triptych.launch.worker.run_worker", keep)
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    assert run("worker", model, "--role", "encode", "--port", 0) == (0, "")
    assert got == [SECRET.encode()]


def test_route_takes_several_workers_of_a_role(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[RouterConfig] = []

    def keep(config: RouterConfig, listener: socket.socket) -> None:
        listener.close()
        got.append(config)

    monkeypatch.setattr("triptych.launch.router.run_router", keep)
    encode = ("--encode", "http://a/", "--encode", "http://b")
    code, printed = run("route", *encode, "--prefill-decode", "http://c/", "--port", 0)
    assert (code, printed) == (0, f"routing  http://127.0.0.1:{got[0].server.port}/v1\n")
    assert got[0].encode_urls == ("http://a", "http://b")
    assert got[0].prefill_decode_urls == ("http://c",)


def test_bench_arguments_become_its_config(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[tuple[ServeBench, bool]] = []

    def keep(bench: ServeBench, console: Console, *, as_json: bool) -> None:
        got.append((bench, as_json))

    monkeypatch.setattr("triptych.bench.serve.bench_serve", keep)
    peers = ("--peer", "other=http://c:1/,big,model", "--peer", "one=http://d,m")
    assert run("bench", "serve", model, *peers, "--rounds", 2, "--json") == (0, "")
    ((bench, as_json),) = got
    assert as_json
    assert bench.model == model
    assert bench.peers == (("other", "http://c:1/,big", "model"), ("one", "http://d", "m"))
    assert bench.rounds == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_route_starts_without_torch_and_ends_at_a_signal(number: signal.Signals) -> None:
    port = free_port()
    command = [sys.executable, "-m", "triptych", "route", "--prefill-decode", "http://127.0.0.1:1"]
    with subprocess.Popen([*command, "--port", str(port)], stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: _health(port) == 503, SECONDS)
            assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text()
        finally:
            process.send_signal(number)
        _, printed = process.communicate(timeout=SECONDS)
    assert (process.returncode, printed) == (0, f"routing  http://127.0.0.1:{port}/v1\n")


def test_the_hidden_child_command_runs_what_it_is_told() -> None:
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    config = RouterConfig((), ("http://127.0.0.1:1",), server=ServerConfig(port=port))
    child = spawn("router", "router", config, listener)
    try:
        wait_until(lambda: _health(port) == 503, SECONDS)
    finally:
        child.stop(SECONDS)
    assert child.process.returncode == 0


def _health(port: int) -> int:
    try:
        return get(f"http://127.0.0.1:{port}", "/health").status
    except OSError:
        return 0
