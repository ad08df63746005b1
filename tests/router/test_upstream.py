from __future__ import annotations

import asyncio
import socket

import pytest

from tests.api.openai.bodies import body
from tests.api.services import EndlessChat, ScriptedChat
from tests.api.serving import chat_app, serving
from tests.router.routing import dead_url
from tests.router.worker_program import worker_process
from triptych.errors import WorkerUnavailable
from triptych.messages import TextDelta
from triptych.router.upstream import ConnectFailed, Upstream


async def posted(url: str, content: bytes, total_seconds: float = 20.0) -> tuple[int, str, bytes]:
    upstream = Upstream(4)
    async with (
        upstream.opened(),
        upstream.post(url, content, (("x-request-id", "r"),), total_seconds) as answer,
    ):
        assert ("x-request-id", "r") in answer.headers
        return answer.status, answer.content_type, await answer.read()


def test_an_answer_passes_with_its_end_to_end_headers() -> None:
    with serving(chat_app(ScriptedChat())) as url:
        status, content_type, reply = asyncio.run(posted(url, body(stream=True)))
    assert (status, content_type) == (200, "text/event-stream; charset=utf-8")
    assert reply.endswith(b"data: [DONE]\n\n")


def test_large_bodies_pass() -> None:
    with serving(chat_app(ScriptedChat())) as url:
        assert asyncio.run(posted(url, body(user="x" * 2_000_000)))[0] == 200


def test_a_refused_connection_is_told_from_a_death() -> None:
    with pytest.raises(ConnectFailed):
        asyncio.run(posted(dead_url(), body()))


def test_silence_ends_with_the_deadline() -> None:
    service = EndlessChat([TextDelta(text="a")])
    with serving(chat_app(service)) as url:
        for stream in (False, True):
            with pytest.raises(WorkerUnavailable) as caught:
                asyncio.run(posted(url, body(stream=stream), total_seconds=0.2))
            assert not isinstance(caught.value, ConnectFailed)


def test_a_worker_that_dies_mid_answer_is_unavailable() -> None:
    async def kill_after_first_chunk() -> None:
        upstream = Upstream(4)
        with worker_process("streaming") as (process, url):
            async with upstream.opened(), upstream.post(url, body(stream=True), (), 20.0) as answer:
                async for _ in answer.chunks:
                    process.kill()

    with pytest.raises(WorkerUnavailable):
        asyncio.run(kill_after_first_chunk())


def test_get_has_a_deadline_too() -> None:
    async def got(url: str) -> None:
        upstream = Upstream(4)
        async with upstream.opened():
            await upstream.get(url, "/health", 0.2)

    with socket.create_server(("127.0.0.1", 0)) as never_accepts:
        with pytest.raises(WorkerUnavailable):
            asyncio.run(got(f"http://127.0.0.1:{never_accepts.getsockname()[1]}"))
    with pytest.raises(ConnectFailed):
        asyncio.run(got(dead_url()))
