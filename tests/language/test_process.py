"""The engine's end of the link, with the engine on a thread of this process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager

import msgspec
import pytest

from tests.language.shelf import new_shelf, placed
from tests.language.tiny import TinyLanguageModel, greedy, new_engine, prompt, qwen3, request
from triptych.language.engine import Engine
from triptych.language.link import FrameSplitter, frame
from triptych.language.process import serve_engine
from triptych.messages import Cancel, EngineInbox, EngineOutbox, EngineReady, Failed, StepOutput, TokenEvent

SECONDS = 60.0


class Front:
    """Reads what the engine writes, in order."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(SECONDS)
        self.sock = sock
        self._splitter = FrameSplitter()
        self._messages: list[EngineOutbox] = []

    def send(self, *messages: EngineInbox) -> None:
        self.sock.sendall(b"".join(frame(message) for message in messages))

    def receive(self) -> EngineOutbox:
        while not self._messages:
            data = self.sock.recv(1 << 16)
            assert data, "the engine closed the link"
            self._messages += [
                msgspec.msgpack.decode(body, type=EngineOutbox) for body in self._splitter.feed(data)
            ]
        return self._messages.pop(0)

    def step(self) -> StepOutput:
        message = self.receive()
        assert isinstance(message, StepOutput)
        return message

    def until_end_of(self, *request_ids: str) -> dict[str, list[TokenEvent | Failed]]:
        """Events until each of the requests has ended."""
        found: dict[str, list[TokenEvent | Failed]] = {}
        open_ids = set(request_ids)
        while open_ids:
            for event in self.step().events:
                found.setdefault(event.request_id, []).append(event)
                if isinstance(event, Failed) or event.finish_reason:
                    open_ids.discard(event.request_id)
        return found


@contextmanager
def served(engine: Engine) -> Generator[Front]:
    """Serve on a thread; afterwards the engine must stop because the front left."""
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=serve_engine, args=(engine, theirs, "report"), daemon=True)
    thread.start()
    with ours:
        front = Front(ours)
        assert front.receive() == engine.ready("report")
        yield front
    thread.join(SECONDS)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def model() -> TinyLanguageModel:
    return TinyLanguageModel(qwen3())


def test_first_message_says_what_the_engine_holds(model: TinyLanguageModel) -> None:
    ready = new_engine(model, num_pages=9, page_tokens=4, max_context_tokens=30).ready("report")
    assert ready == EngineReady(
        max_context_tokens=30, kv_page_tokens=4, num_kv_pages=9, eos_token_ids=(7,), load_report="report"
    )


def test_every_request_ends_and_the_load_returns_to_zero(model: TinyLanguageModel) -> None:
    with served(new_engine(model)) as front:
        front.send(*(request(f"r{n}", prompt(n, n), greedy(n)) for n in (3, 9, 20)))
        found = front.until_end_of("r3", "r9", "r20")
        assert {name: len(events) for name, events in found.items()} == {"r3": 3, "r9": 9, "r20": 20}
        front.send(Cancel(request_id="nobody"))
        last = front.step()
        assert (last.num_running, last.num_waiting, last.kv_usage) == (0, 0, 0)


def test_refused_request_fails_with_its_code_and_the_rest_goes_on(model: TinyLanguageModel) -> None:
    with served(new_engine(model)) as front:
        front.send(request("long", prompt(300, 0)), request("fine", prompt(5, 0)))
        found = front.until_end_of("long", "fine")
        assert [event.code for event in found["long"] if isinstance(event, Failed)] == [
            "context_length_exceeded"
        ]
        assert len(found["fine"]) == 8


def test_idle_engine_wakes_for_embeddings_that_arrive_later(model: TinyLanguageModel) -> None:
    with new_shelf() as shelf, served(new_engine(model, shelf.consumer)) as front:
        late, lost = shelf.pending(4), shelf.pending(4)
        front.send(request("a", prompt(9, 0), items=(placed(late, (2, 4)),)))
        front.send(request("b", prompt(9, 0), items=(placed(lost, (2, 4)),)))
        while front.step().num_waiting < 2:
            pass
        shelf.publish(late)
        shelf.producer.fail(lost, "media_invalid", "image 1: damaged")
        found = front.until_end_of("a", "b")
        assert len(found["a"]) == 8
        assert [event.code for event in found["b"] if isinstance(event, Failed)] == ["media_invalid"]


def test_idle_engine_wakes_for_a_deadline(model: TinyLanguageModel) -> None:
    with new_shelf() as shelf, served(new_engine(model, shelf.consumer)) as front:
        item = placed(shelf.pending(4), (2, 4))
        front.send(request("a", prompt(9, 0), items=(item,), deadline_ms=50))
        found = front.until_end_of("a")
        assert [event.code for event in found["a"] if isinstance(event, Failed)] == ["deadline_exceeded"]
        assert shelf.num_references <= 1


def test_failed_forward_fails_its_requests_and_the_engine_lives_on(
    model: TinyLanguageModel, caplog: pytest.LogCaptureFixture
) -> None:
    with served(new_engine(model)) as front:
        model.broken = True
        front.send(request("a", prompt(9, 0)))
        (failed,) = front.until_end_of("a")["a"]
        assert isinstance(failed, Failed)
        assert (failed.code, "accelerator" in failed.message) == ("internal", False)
        front.send(request("b", prompt(9, 0)))
        assert len(front.until_end_of("b")["b"]) == 8
    assert "accelerator" in caplog.text


def test_front_that_leaves_frees_everything(model: TinyLanguageModel) -> None:
    with new_shelf() as shelf:
        engine = new_engine(model, shelf.consumer)
        with served(engine) as front:
            front.send(request("a", prompt(9, 0), items=(placed(shelf.pending(4), (2, 4)),)))
            front.send(request("b", prompt(9, 0), greedy(200)))
            front.step()
        assert engine.idle
        assert engine.step().kv_usage == 0
        assert shelf.num_references == 0


def test_front_that_talks_nonsense_is_left(model: TinyLanguageModel) -> None:
    with served(new_engine(model)) as front:
        front.sock.sendall(b"\x00\x00\x00\x01\xc1")
        assert front.sock.recv(1) == b""
