"""Nothing is left behind, whoever is killed; what can go on, goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.flow.media import picture
from tests.flow.served import (
    STOP_SECONDS,
    Served,
    descendants,
    free_port,
    is_running,
    left_of,
    listening_port,
    running,
    shared_memory_of,
    wait_until,
)

TEXT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "model": "tiny-omni"}


@pytest.fixture(scope="module")
def own(tiny_omni: Path) -> Iterator[Served]:
    """An e+pd server of this test's own, to be killed."""
    port = free_port()
    with running(["serve", str(tiny_omni), "--layout", "e+pd"], port) as served:
        yield served


def with_picture(seed: int) -> dict[str, object]:
    content = [{"type": "image_url", "image_url": {"url": picture(seed).url}}]
    return {**TEXT, "messages": [{"role": "user", "content": content}]}


def pid_of(server: Served, name: str) -> int:
    """The child of that name: it stands last on its command line."""
    found = [pid for pid in descendants(server.process.pid) if _command(pid).endswith(f" {name} ")]
    assert len(found) == 1, (name, found)
    return found[0]


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_every_process_ends_and_shared_memory_is_clean(tiny_omni: Path, number: signal.Signals) -> None:
    port = free_port()
    with running(["serve", str(tiny_omni), "--layout", "e+pd"], port) as served:
        assert served.post(with_picture(1))[0] == 200
        family = descendants(served.process.pid)
        assert len(family) == 4  # encode, prefill-decode and its engine, router
        held = shared_memory_of(family)
        assert held
        served.process.send_signal(number)
        code = served.process.wait(STOP_SECONDS)
        assert code == (0 if number is not signal.SIGKILL else -signal.SIGKILL)
        wait_until(lambda: not any(is_running(pid) for pid in family), STOP_SECONDS)
    assert left_of(held) == set()


def test_a_dead_encode_worker_fails_its_requests_only_and_comes_back(own: Served) -> None:
    assert own.post(with_picture(1))[0] == 200
    os.kill(pid_of(own, "encode 1"), signal.SIGKILL)
    status, reply = own.post(with_picture(2))
    if status != 200:  # Already started again: nothing failed.
        assert status == 503
        assert reply["error"]["code"] in ("worker_unavailable", "embedding_unavailable")
    assert own.post(TEXT)[0] == 200
    wait_until(lambda: own.post(with_picture(3))[0] == 200, STOP_SECONDS * 4)


def test_an_engine_killed_while_streaming_ends_every_reply_and_comes_back(own: Served) -> None:
    long = {**TEXT, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with ExitStack() as stack:
        streams = [stack.enter_context(own.stream(long)) for _ in range(4)]
        for lines in streams:
            assert b"choices" in next(lines)
        os.kill(pid_of(own, "engine"), signal.SIGKILL)
        for lines in streams:
            *_, error, done = [line for line in lines if line.strip()]
            assert b'"code":"worker_unavailable"' in error.replace(b" ", b"")
            assert done.strip() == b"data: [DONE]"
    wait_until(lambda: own.post(TEXT)[0] == 200, STOP_SECONDS * 4)


def test_a_client_that_leaves_frees_the_engine(own: Served) -> None:
    long = {**TEXT, "max_tokens": 30_000, "ignore_eos": True, "stream": True}
    for _ in range(3):
        with own.stream(long) as lines:
            assert b"choices" in next(lines)
    # The engine would be busy for minutes with what these three asked for.
    assert own.post(TEXT)[0] == 200
    port = listening_port(pid_of(own, "prefill-decode 1"))
    front = Served(own.process, port)
    wait_until(lambda: b"vllm:num_requests_running 0.0" in front.get("/metrics")[1], STOP_SECONDS)
