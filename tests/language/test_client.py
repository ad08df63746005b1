"""The client against a real engine process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing, contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.language.shelf import new_shelf, placed
from tests.language.tiny import greedy, prompt, qwen3, reference, request
from triptych.errors import CheckpointError, DeadlineExceeded, PromptTooLong, QueueFull, WorkerUnavailable
from triptych.language.client import EngineClient, EngineLoad
from triptych.language.link import FrameSplitter, frame
from triptych.messages import (
    EngineInbox,
    EngineReady,
    Failed,
    FinishReason,
    Release,
    StepOutput,
    TokenEvent,
)

ROOT = Path(__file__).parents[2]
SECONDS = 120.0


@contextmanager
def engine_process(*arguments: str) -> Generator[tuple[socket.socket, subprocess.Popen[bytes]]]:
    ours, theirs = socket.socketpair()
    program = [sys.executable, "-m", "tests.language.engine_program", str(theirs.fileno()), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(program, pass_fds=(theirs.fileno(),), cwd=ROOT, env=environment)
    theirs.close()
    try:
        yield ours, process
    finally:
        ours.close()
        process.kill()
        process.wait(30)


def with_client(
    test: Callable[[EngineClient, subprocess.Popen[bytes]], Awaitable[None]],
    on_step: Callable[[StepOutput], None] | None = None,
) -> None:
    async def main() -> None:
        with engine_process() as (sock, process):
            client = EngineClient(sock, on_step)
            ready = await client.ready(SECONDS)
            assert (ready.load_report, ready.num_kv_pages) == ("tiny", 64)
            async with asyncio.timeout(SECONDS):
                await test(client, process)
            client.close()
            client.close()
            assert process.wait(30) in (0, -signal.SIGKILL)

    asyncio.run(main())


async def all_tokens(events: AsyncGenerator[TokenEvent, None]) -> list[int]:
    return [event.token_id async for event in events]


def test_concurrent_requests_equal_generate_and_cancel_frees_the_engine() -> None:
    model = qwen3()
    wanted = {n: reference(model, prompt(n, n), 10) for n in (3, 20, 41)}

    stepped = asyncio.Event()

    async def test(client: EngineClient, process: subprocess.Popen[bytes]) -> None:
        async with asyncio.TaskGroup() as group:
            found = {
                n: group.create_task(all_tokens(client.generate(request(f"r{n}", prompt(n, n), greedy(10)))))
                for n in wanted
            }
        assert {n: task.result() for n, task in found.items()} == wanted
        async with aclosing(client.generate(request("left", prompt(9, 0), greedy(200)))) as events:
            async for _ in events:
                break
        while client.load.kv_usage > 0:
            await asyncio.wait_for(stepped.wait(), SECONDS)
            stepped.clear()
        assert (client.load.num_running, client.load.num_waiting) == (0, 0)

    with_client(test, lambda _: stepped.set())


def test_errors_of_the_engine_keep_their_type_and_end_one_request_only() -> None:
    async def test(client: EngineClient, process: subprocess.Popen[bytes]) -> None:
        async with asyncio.TaskGroup() as group:
            fine = group.create_task(all_tokens(client.generate(request("fine", prompt(5, 0), greedy(20)))))
            with pytest.raises(PromptTooLong, match="300 tokens"):
                await all_tokens(client.generate(request("long", prompt(300, 0))))
        assert len(fine.result()) == 20

    with_client(test)


def test_killed_engine_ends_requests_in_flight_and_refuses_later_ones() -> None:
    async def test(client: EngineClient, process: subprocess.Popen[bytes]) -> None:
        events = client.generate(request("a", prompt(9, 0), greedy(200)))
        assert isinstance(await anext(events), TokenEvent)
        process.kill()
        with pytest.raises(WorkerUnavailable):
            await all_tokens(events)
        assert not client.alive
        with pytest.raises(WorkerUnavailable):
            await all_tokens(client.generate(request("b", prompt(9, 0))))

    with_client(test)


def test_engine_that_cannot_start_says_why() -> None:
    async def main() -> None:
        with engine_process("refuse") as (sock, _):
            client = EngineClient(sock)
            with pytest.raises(CheckpointError, match="no weights here"):
                await client.ready(SECONDS)
            client.close()

    asyncio.run(main())


def test_engine_that_dies_while_starting_is_unavailable() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        theirs.close()
        with pytest.raises(WorkerUnavailable, match="while starting"):
            await EngineClient(ours).ready(SECONDS)

    asyncio.run(main())


def test_silent_engine_is_not_waited_for_beyond_the_deadline() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            with pytest.raises(WorkerUnavailable, match="not ready"):
                await EngineClient(ours).ready(0.01)

    asyncio.run(main())


@contextmanager
def scripted(max_requests: int = 10) -> Generator[tuple[EngineClient, socket.socket, list[StepOutput]]]:
    """A client whose engine is the test, which holds the other end of the link."""
    ours, theirs = socket.socketpair()
    steps: list[StepOutput] = []
    client = EngineClient(ours, on_step=steps.append, max_requests=max_requests)
    with ours, theirs:
        theirs.sendall(
            frame(
                EngineReady(
                    max_context_tokens=100, kv_page_tokens=4, num_kv_pages=9, eos_token_ids=(), load_report=""
                )
            )
        )
        yield client, theirs, steps
        client.close()


def step(*events: TokenEvent | Failed) -> bytes:
    return frame(StepOutput(events=events, num_running=3, num_waiting=2, kv_usage=0.5))


def token(request_id: str, token_id: int, reason: FinishReason | None = None) -> TokenEvent:
    return TokenEvent(request_id=request_id, token_id=token_id, finish_reason=reason)


def test_slow_reader_keeps_its_tokens_and_holds_up_nobody() -> None:
    async def main() -> None:
        with scripted() as (client, engine, steps):
            await client.ready(SECONDS)
            slow = client.generate(request("slow", prompt(5, 0), greedy(40)))
            quick = client.generate(request("quick", prompt(5, 0), greedy(1)))
            first = asyncio.ensure_future(anext(slow))
            await asyncio.sleep(0)
            last = asyncio.ensure_future(all_tokens(quick))
            await asyncio.sleep(0)
            for index in range(39):
                engine.sendall(step(token("slow", index)))
            engine.sendall(step(token("slow", 39, "length"), token("quick", 7, "stop")))
            async with asyncio.timeout(SECONDS):
                assert await last == [7]
                assert (await first).token_id == 0
                assert await all_tokens(slow) == list(range(1, 40))
            assert len(steps) == 40
            assert client.load == EngineLoad(num_running=3, num_waiting=2, kv_usage=0.5)

    asyncio.run(main())


def test_engine_that_never_answers_is_left_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triptych.language.client._GRACE_SECONDS", 0.0)

    async def main() -> None:
        with scripted() as (client, _, _):
            await client.ready(SECONDS)
            with pytest.raises(DeadlineExceeded):
                await all_tokens(client.generate(request("a", prompt(5, 0), deadline_ms=1)))

    asyncio.run(main())


def test_requests_in_flight_are_bounded() -> None:
    async def main() -> None:
        with scripted(max_requests=1) as (client, engine, _):
            await client.ready(SECONDS)
            events = client.generate(request("a", prompt(5, 0)))
            waiting = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)
            with pytest.raises(QueueFull):
                await all_tokens(client.generate(request("b", prompt(5, 0))))
            engine.sendall(step(token("a", 1)))
            await waiting
            await events.aclose()

    asyncio.run(main())


def test_closing_the_iterator_sends_cancel_only_before_the_end() -> None:
    async def main() -> None:
        with scripted() as (client, engine, _):
            await client.ready(SECONDS)
            endings: tuple[tuple[str, FinishReason | None], ...] = (("left", None), ("done", "stop"))
            for name, reason in endings:
                events = client.generate(request(name, prompt(5, 0)))
                first = asyncio.ensure_future(anext(events))
                await asyncio.sleep(0)
                engine.sendall(step(token(name, 1, reason)))
                await first
                await events.aclose()
            client.close()
            engine.settimeout(30)
            received = b"".join(iter(lambda: engine.recv(1 << 16), b""))
        sent = [msgspec.msgpack.decode(body, type=EngineInbox) for body in FrameSplitter().feed(received)]
        assert [_told(message) for message in sent] == [
            ("GenerateRequest", "left"),
            ("Cancel", "left"),
            ("GenerateRequest", "done"),
        ]

    asyncio.run(main())


def test_references_of_a_request_that_is_refused_here_are_given_back() -> None:
    async def main() -> None:
        with scripted(max_requests=0) as (client, engine, _), new_shelf() as shelf:
            await client.ready(SECONDS)
            item = placed(shelf.pending(2), (0, 2))
            with pytest.raises(QueueFull):
                await all_tokens(client.generate(request("a", prompt(5, 0), items=(item,))))
            client.close()
            engine.settimeout(30)
            received = b"".join(iter(lambda: engine.recv(1 << 16), b""))
        (sent,) = [msgspec.msgpack.decode(body, type=EngineInbox) for body in FrameSplitter().feed(received)]
        assert sent == Release(refs=(item.ref.tensor,))

    asyncio.run(main())


def _told(message: EngineInbox) -> tuple[str, str]:
    return type(message).__name__, "" if isinstance(message, Release) else message.request_id
