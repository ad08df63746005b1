"""A worker answers from its first moment, says what state it is in, and ends when something is wrong."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.api.client import get, post
from tests.api.openai.bodies import body, image, with_parts
from tests.flow.served import wait_until
from tests.launch.acting import SECONDS, run_while
from tests.launch.test_serve import children
from tests.media.make_image import solid_png
from tests.stages.preparing import RED, inline
from triptych.config import ModelConfig, Role, ServerConfig, TransportConfig, WorkerConfig
from triptych.errors import CheckpointError, StartupError
from triptych.launch.processes import listen
from triptych.launch.worker import run_worker
from triptych.telemetry import Metrics

pytestmark = pytest.mark.usefixtures("stand_in", "own_signals", "own_threads")


class Worker:
    """A worker at a free port, not started yet."""

    def __init__(self, model: Path, role: Role, name: str = "tiny") -> None:
        self._listener = listen("127.0.0.1", 0)
        port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.said_ready = threading.Event()
        self._config = WorkerConfig(
            role=role,
            model=ModelConfig(path=model, served_name=name),
            secret=b"0123456789abcdef",
            server=ServerConfig(port=port, drain_seconds=1.0),
            transport=TransportConfig(pool_bytes=4 << 20),
        )

    def run(self) -> None:
        run_worker(self._config, self._listener, self.said_ready.set)

    def run_while(self, act: Callable[[], None]) -> None:
        run_while(self.run, act)

    @property
    def state(self) -> str:
        return get(self.url, "/health").json()["status"]

    def wait_until_ready(self) -> None:
        wait_until(lambda: get(self.url, "/health").status == 200, SECONDS)


def test_a_language_worker_answers_once_it_is_ready_and_ends_its_engine(tiny_omni: Path) -> None:
    worker = Worker(tiny_omni, "prefill-decode")

    def act() -> None:
        worker.wait_until_ready()
        reply = post(worker.url, body())
        assert reply.json()["choices"][0]["message"]["content"] == "A"
        assert worker.said_ready.wait(SECONDS)

    worker.run_while(act)
    assert children() == {}


def test_an_encode_worker_answers_with_references(tiny_omni: Path) -> None:
    worker = Worker(tiny_omni, "encode")

    def act() -> None:
        worker.wait_until_ready()
        reply = post(worker.url, with_parts(image(inline(solid_png(RED, 64, 64)))))
        assert reply.status == 200
        assert len(reply.json()["ec_transfer_params"]) == 1

    worker.run_while(act)


def test_a_worker_that_loads_says_so_and_can_be_stopped(tiny_omni: Path) -> None:
    worker = Worker(tiny_omni, "prefill-decode", "mute")

    def act() -> None:
        wait_until(lambda: "engine" in children(), SECONDS)
        assert worker.state == "starting"
        reply = post(worker.url, body(model="mute"))
        assert (reply.status, reply.error["code"]) == (503, "worker_unavailable")

    worker.run_while(act)
    assert children() == {}


def test_a_worker_ends_when_its_engine_dies(tiny_omni: Path) -> None:
    worker = Worker(tiny_omni, "prefill-decode")

    def act() -> None:
        worker.wait_until_ready()
        os.kill(children()["engine"], signal.SIGKILL)

    with pytest.raises(StartupError, match="engine process died"):
        worker.run_while(act)


@pytest.mark.parametrize("role", ["encode", "prefill-decode", "all"])
def test_a_worker_ends_when_it_cannot_load_its_model(tmp_path: Path, role: Role) -> None:
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        Worker(tmp_path, role, "mute").run()
    assert children() == {}


def test_a_worker_ends_when_something_unforeseen_happens_while_loading(
    tiny_omni: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(config: WorkerConfig, metrics: Metrics, stack: AsyncExitStack) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr("triptych.launch.worker.build_stages", broken)
    with pytest.raises(RuntimeError, match="unforeseen"):
        Worker(tiny_omni, "encode").run()
