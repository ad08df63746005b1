"""`triptych serve`: all processes of a layout on one machine, started together and stopped together."""

from __future__ import annotations

import http.client
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from triptych.config import (
    Layout,
    MediaConfig,
    ModelConfig,
    Role,
    RouterConfig,
    ServerConfig,
    WorkerConfig,
)
from triptych.errors import ConfigError, StartupError
from triptych.launch.processes import Child, ChildKind, listen, spawn

_POLL_SECONDS = 0.1
_HEALTH_SECONDS = 1.0
_RESTARTS_ALLOWED = 3
_RESTART_WINDOW_SECONDS = 60.0
_LOOPBACK = "127.0.0.1"
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServeConfig:
    model: ModelConfig
    secret: bytes = field(repr=False)
    layout: Layout = "none"
    server: ServerConfig = field(default_factory=ServerConfig)
    media: MediaConfig = field(default_factory=MediaConfig)
    num_encode: int = 1
    num_prefill_decode: int = 1
    startup_seconds: float = 300.0


@dataclass(slots=True)
class Member:
    """One process of the layout: what it is, where it listens, and its current incarnation."""

    name: str
    kind: ChildKind
    spec: WorkerConfig | RouterConfig
    child: Child | None = None
    was_healthy: bool = False
    started_at: list[float] = field(default_factory=list[float])

    @property
    def url(self) -> str:
        server = self.spec.server
        return (
            f"http://[{self._host}]:{server.port}"
            if ":" in self._host
            else f"http://{self._host}:{server.port}"
        )

    @property
    def _host(self) -> str:
        host = self.spec.server.host
        return {"": _LOOPBACK, "0.0.0.0": _LOOPBACK, "::": "::1"}.get(host, host)

    def start(self, listener: socket.socket | None = None) -> None:
        server = self.spec.server
        if self.child is not None:
            self.child.stop(0)  # It is dead: this closes our end of its pipe.
        self.child = spawn(self.name, self.kind, self.spec, listener or listen(server.host, server.port))
        self.started_at = [*self.started_at, time.monotonic()][-_RESTARTS_ALLOWED - 1 :]

    @property
    def alive(self) -> bool:
        return self.child is not None and self.child.alive

    @property
    def restarts_too_often(self) -> bool:
        if len(self.started_at) <= _RESTARTS_ALLOWED:
            return False
        return time.monotonic() - self.started_at[0] < _RESTART_WINDOW_SECONDS

    def healthy(self) -> bool:
        # Not urllib: it would ask a proxy from the environment.
        connection = http.client.HTTPConnection(self._host, self.spec.server.port, timeout=_HEALTH_SECONDS)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def serve(config: ServeConfig, console: Console) -> None:
    """Run the layout until SIGINT or SIGTERM, then stop every process.

    A process that dies is started again at its port; one that dies over and over ends everything.

    Raises:
        StartupError: a process ended or was not healthy in time.
    """
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    members: list[Member] = []
    try:
        start_layout(config, members)
        _wait_until_healthy(members, config.startup_seconds, stop, console)
        if not stop.is_set():
            _say_ready(config, members, console)
        _watch(members, stop)
    finally:
        console.print("[dim]stopping …[/dim]")
        _stop_all(members, config.server.drain_seconds)


def _say_ready(config: ServeConfig, members: Sequence[Member], console: Console) -> None:
    for member in members[:-1]:
        console.print(f"[dim]{escape(member.name)}  {member.url}[/dim]", highlight=False)
    console.print(f"[bold]ready[/bold]  {members[-1].url}/v1  (model {escape(config.model.served_name)})")


def start_layout(config: ServeConfig, members: list[Member]) -> None:
    """Start the processes of the layout, the one that users talk to last; each is added to `members`."""
    front = listen(config.server.host, config.server.port)
    server = replace(config.server, port=front.getsockname()[1])
    if config.layout == "none":
        _add(members, "server", _worker_spec(config, "all", server), front)
        return
    encode = [_add_worker(members, config, "encode", n) for n in range(config.num_encode)]
    language = [_add_worker(members, config, "prefill-decode", n) for n in range(config.num_prefill_decode)]
    router = RouterConfig(
        encode_urls=tuple(member.url for member in encode),
        prefill_decode_urls=tuple(member.url for member in language),
        server=server,
    )
    _add(members, "router", router, front)


def _add_worker(members: list[Member], config: ServeConfig, role: Role, number: int) -> Member:
    listener = listen(_LOOPBACK, 0)
    server = replace(config.server, host=_LOOPBACK, port=listener.getsockname()[1])
    return _add(members, f"{role} {number + 1}", _worker_spec(config, role, server), listener)


def _worker_spec(config: ServeConfig, role: Role, server: ServerConfig) -> WorkerConfig:
    return WorkerConfig(
        role=role, model=config.model, secret=config.secret, server=server, media=config.media
    )


def _add(
    members: list[Member], name: str, spec: WorkerConfig | RouterConfig, listener: socket.socket
) -> Member:
    member = Member(name, "router" if isinstance(spec, RouterConfig) else "worker", spec)
    members.append(member)
    member.start(listener)
    return member


def _wait_until_healthy(
    members: Sequence[Member], seconds: float, stop: threading.Event, console: Console
) -> None:
    deadline = time.monotonic() + seconds
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    # Without a terminal there is nothing to animate: a line each, as they come.
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        tasks = {member.name: progress.add_task(f"starting {member.name}", total=1) for member in members}
        waiting = list(members)
        if not console.is_terminal:
            console.print(f"starting {', '.join(member.name for member in members)} …")
        while waiting and not stop.wait(_POLL_SECONDS):
            for member in [m for m in waiting if m.healthy()]:
                waiting.remove(member)
                member.was_healthy = True
                progress.update(tasks[member.name], completed=1, description=f"{member.name} is ready")
                if not console.is_terminal:
                    console.print(f"{member.name} is ready")
            _check_start(waiting, deadline)


def _check_start(waiting: Sequence[Member], deadline: float) -> None:
    for member in waiting:
        if not member.alive:
            raise StartupError(f"{member.name} could not start; its own message is above")
    if waiting and time.monotonic() > deadline:
        names = ", ".join(member.name for member in waiting)
        raise StartupError(f"not ready in time: {names}")


def _watch(members: Sequence[Member], stop: threading.Event) -> None:
    while not stop.wait(_POLL_SECONDS):
        for member in members:
            if member.alive:
                continue
            if member.restarts_too_often:
                raise StartupError(f"{member.name} keeps dying: giving up")
            logger.warning("%s died; starting it again", member.name)
            _retry(member.start)


def _retry(start: Callable[[], None]) -> None:
    try:
        start()
    except ConfigError as error:
        # The port is not free yet: the next round tries again.
        logger.warning("cannot start it yet: %s", error.message)


def _stop_all(members: Sequence[Member], grace_seconds: float) -> None:
    """The front first, so that requests under way still have their workers; then the others together."""
    for member in members:
        if member.child is not None and not member.was_healthy:
            # Still loading: it serves nobody, and would notice a request to stop only when it is done.
            member.child.process.kill()
    for member in members[-1:]:
        if member.child is not None:
            member.child.stop(grace_seconds)
    for member in members:
        if member.child is not None:
            member.child.ask_to_stop()
    for member in members:
        if member.child is not None:
            member.child.stop(grace_seconds)
