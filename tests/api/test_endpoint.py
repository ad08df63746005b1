from __future__ import annotations

import asyncio

import pytest

from tests.api.serving import new_metrics
from tests.api.test_exchange import GONE, Wire, chunk
from triptych.api.endpoint import Endpoint
from triptych.api.exchange import Exchange
from triptych.config import ServerConfig
from triptych.errors import PromptTooLong, WorkerUnavailable


def run(wire: Wire, outcome: str | Exception) -> dict[str, float]:
    """Serve one request; returns the counted codes."""
    metrics = new_metrics()

    def gate() -> None:
        if isinstance(outcome, WorkerUnavailable):
            raise outcome

    async def answer(exchange: Exchange, body: bytes) -> str:
        if isinstance(outcome, Exception):
            raise outcome
        await exchange.reply(200, body)
        return outcome

    endpoint = Endpoint("all", ServerConfig(), metrics, gate, answer)
    asyncio.run(endpoint({"type": "http", "headers": []}, wire.receive, wire.send))
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    return {s.labels["code"]: s.value for s in samples if s.name == "triptych_requests_total"}


@pytest.mark.parametrize(
    ("outcome", "status", "code"),
    [
        ("ok", 200, "ok"),
        (PromptTooLong("long"), 400, "context_length_exceeded"),
        (WorkerUnavailable("draining"), 503, "worker_unavailable"),
        (KeyError("x"), 500, "internal"),
    ],
)
def test_every_request_is_answered_and_counted(outcome: str | Exception, status: int, code: str) -> None:
    wire = Wire(chunk(b"{}", False))
    assert run(wire, outcome) == {code: 1}
    assert wire.sent[0]["status"] == status
    assert wire.sent[-1]["more_body"] is False


def test_a_client_that_left_is_counted_and_not_answered() -> None:
    wire = Wire(GONE)
    assert run(wire, "ok") == {"cancelled": 1}
    assert wire.sent == []
