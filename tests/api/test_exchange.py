from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from triptych.api.exchange import ClientGone, Exchange
from triptych.errors import BodyTooLarge, InvalidRequest, WorkerUnavailable


class Wire:
    """An ASGI connection: `incoming` is received, then nothing more comes."""

    def __init__(self, *incoming: Message) -> None:
        self.incoming = list(incoming)
        self.sent: list[Message] = []

    async def receive(self) -> Message:
        if not self.incoming:
            await asyncio.Event().wait()
        return self.incoming.pop(0)

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    def exchange(self, **headers: str) -> Exchange:
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        return Exchange({"type": "http", "headers": raw}, self.receive, self.send)


def chunk(body: bytes, more: bool) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


GONE: Message = {"type": "http.disconnect"}


def test_a_body_is_joined() -> None:
    exchange = Wire(chunk(b"a", True), chunk(b"b", False)).exchange()
    assert asyncio.run(exchange.body(2)) == b"ab"


def test_a_body_that_grows_too_large_is_refused() -> None:
    exchange = Wire(chunk(b"a", True), chunk(b"bc", True)).exchange()
    with pytest.raises(BodyTooLarge):
        asyncio.run(exchange.body(2))


def test_an_announced_length_is_refused_unread() -> None:
    wire = Wire(chunk(b"a", False))
    with pytest.raises(BodyTooLarge):
        asyncio.run(wire.exchange(content_length="3").body(2))
    assert len(wire.incoming) == 1


def test_a_client_that_leaves_while_sending_is_gone() -> None:
    with pytest.raises(ClientGone):
        asyncio.run(Wire(chunk(b"a", True), GONE).exchange().body(9))


def test_a_client_that_leaves_cancels_the_work() -> None:
    cancelled: list[bool] = []

    async def work() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)
        return "never"

    with pytest.raises(ClientGone):
        asyncio.run(Wire(GONE).exchange().while_connected(work()))
    assert cancelled == [True]


def test_the_work_of_a_patient_client_returns() -> None:
    async def work() -> str:
        return "done"

    assert asyncio.run(Wire().exchange().while_connected(work())) == "done"


def test_work_that_is_cut_off_while_the_client_waits_is_try_later() -> None:
    async def work() -> str:
        raise asyncio.CancelledError

    with pytest.raises(WorkerUnavailable):
        asyncio.run(Wire().exchange().while_connected(work()))


@pytest.mark.parametrize("error", [OSError(), RuntimeError("the handler is closed")])
def test_a_broken_connection_means_that_the_client_is_gone(error: Exception) -> None:
    async def broken(message: Message) -> None:
        raise error

    exchange = Exchange({"type": "http", "headers": []}, Wire().receive, broken)
    with pytest.raises(ClientGone):
        asyncio.run(exchange.reply(200, b"{}"))


def test_an_id_of_the_client_is_kept_unless_it_is_absurdly_long() -> None:
    assert Wire().exchange().label is None
    assert Wire().exchange(x_request_id="a" * 256).label == "a" * 256
    with pytest.raises(InvalidRequest, match="x-request-id"):
        _ = Wire().exchange(x_request_id="a" * 257).label
