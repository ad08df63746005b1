"""A load keeps its order and its concurrency, and does not hide failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.api.serving import serving
from tests.router.routing import dead_url
from triptych.bench.load import LoadResult, Outcome, run_load
from triptych.errors import TriptychError

USAGE = {"prompt_tokens": 5, "completion_tokens": 2}


@dataclass
class Model:
    """Answers with the request's own words; the first request answers last."""

    broken: str | None = None
    """"status" or "stream": how the request with the word "bad" fails."""
    num_running: int = 0
    max_running: int = 0
    others_done: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        words = str(body["words"])
        if words == "bad" and self.broken == "status":
            return Response("out of order", status_code=503)
        return StreamingResponse(self._events(words), media_type="text/event-stream")

    async def _events(self, words: str) -> AsyncIterator[bytes]:
        self.num_running += 1
        self.max_running = max(self.max_running, self.num_running)
        try:
            if words == "first":
                await asyncio.wait_for(self.others_done.wait(), 20)
            yield event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
            for word in words:
                yield event({"choices": [{"delta": {"content": word}}]})
            if words == "bad":
                yield event({"error": {"message": "broke", "code": "internal"}})
            yield b": a comment\n\n"
            yield event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
            yield event({"choices": [], "usage": USAGE})
            yield b"data: [DONE]\n\n"
        finally:
            self.num_running -= 1
        if words == "last":
            self.others_done.set()


def event(content: object) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def load(model: Model, words: list[str], concurrency: int) -> LoadResult:
    app = Starlette(routes=[Route("/v1/chat/completions", model.answer, methods=["POST"])])
    with serving(app) as url:
        return asyncio.run(run_load(url, [{"words": word} for word in words], concurrency))


def test_outcomes_keep_the_order_of_the_requests() -> None:
    result = load(Model(), ["first", "second", "last"], concurrency=3)
    assert result.texts == ("first", "second", "last")
    assert all(outcome.num_prompt_tokens == 5 for outcome in result.outcomes)
    assert all(outcome.num_output_tokens == 2 for outcome in result.outcomes)
    assert all(0 < outcome.ttft_seconds <= outcome.total_seconds for outcome in result.outcomes)


def test_no_more_requests_run_at_a_time_than_asked_for() -> None:
    model = Model()
    load(model, [f"word{number}" for number in range(12)], concurrency=2)
    assert model.max_running <= 2


@pytest.mark.parametrize(("broken", "says"), [("status", "answered 503: out of order"), ("stream", "broke")])
def test_a_request_that_fails_fails_the_load(broken: str, says: str) -> None:
    with pytest.raises(TriptychError, match=says):
        load(Model(broken), ["good", "bad", "fine"], concurrency=2)


def test_a_server_that_is_not_there_fails_the_load() -> None:
    url = dead_url()
    with pytest.raises(TriptychError, match=url):
        asyncio.run(run_load(url, [{}], 1))


def test_quantiles_are_values_that_were_measured() -> None:
    result = LoadResult(tuple(outcome(seconds) for seconds in (4.0, 1.0, 3.0, 2.0)), wall_seconds=8.0)
    assert result.requests_per_second == 0.5
    assert [result.ttft_seconds(q) for q in (0.0, 0.5, 0.9, 1.0)] == [1.0, 3.0, 4.0, 4.0]


def outcome(seconds: float) -> Outcome:
    return Outcome(
        text="", ttft_seconds=seconds, total_seconds=seconds, num_prompt_tokens=1, num_output_tokens=1
    )
