from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.api.openai.bodies import body, image, with_parts
from tests.api.services import EndlessEncode, FakeEncode, ScriptedChat
from tests.api.serving import WAIT_SECONDS, chat_app, encode_app, serving
from tests.router.routing import dead_url
from tests.router.worker_program import worker_process
from triptych.errors import MediaFetchFailed, WorkerUnavailable
from triptych.router.health import probe_all
from triptych.router.members import Members
from triptych.router.proxy import Proxy, Refused
from triptych.router.upstream import Upstream

MEDIA = with_parts(image("data:,1"))


async def chatted(
    members: Members, content: bytes, encode_seconds: float = WAIT_SECONDS
) -> tuple[int, bytes]:
    """The answer's status and body; every worker counts as healthy at first."""
    for worker in members.workers:
        worker.healthy = True
    upstream = Upstream(8)
    proxy = Proxy(members, upstream, encode_seconds)
    async with upstream.opened():
        async with proxy.chat(content, ()) as answer:
            if isinstance(answer, Refused):
                return answer.status, answer.body
            return answer.status, await answer.read()


def healthy(members: Members) -> list[bool]:
    return [worker.healthy for worker in members.workers]


def idle(members: Members) -> bool:
    return all(worker.in_flight == 0 for worker in members.workers)


def test_text_skips_the_encode_workers() -> None:
    encode, chat = FakeEncode(), ScriptedChat()
    with serving(encode_app(encode)) as e, serving(chat_app(chat)) as p:
        assert asyncio.run(chatted(Members([e], [p]), body()))[0] == 200
    assert (len(encode.requests), len(chat.requests)) == (0, 1)


def test_media_are_encoded_and_their_handles_go_to_prefill() -> None:
    encode, chat = FakeEncode(), ScriptedChat()
    with serving(encode_app(encode)) as e, serving(chat_app(chat)) as p:
        assert asyncio.run(chatted(Members([e], [p]), MEDIA))[0] == 200
    assert [item.handle for item in chat.requests[0].items] == ["signed:key-image-0"]
    assert chat.requests[0].items[0].source is None


def test_large_media_pass() -> None:
    encode, chat = FakeEncode(), ScriptedChat()
    content = with_parts(image("data:image/png;base64," + "A" * 3_000_000))
    with serving(encode_app(encode)) as e, serving(chat_app(chat)) as p:
        assert asyncio.run(chatted(Members([e], [p]), content))[0] == 200
    assert len(encode.requests[0].items[0].source or "") > 3_000_000


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_worker_that_takes_no_connections_is_replaced_and_marked(order: Sequence[int]) -> None:
    with serving(encode_app(FakeEncode())) as e, serving(chat_app(ScriptedChat())) as p:
        encodes, languages = (dead_url(), e), (dead_url(), p)
        members = Members([encodes[at] for at in order], [languages[at] for at in order])
        for _ in range(4):
            assert asyncio.run(chatted(members, MEDIA))[0] == 200
        assert idle(members)


def test_dead_workers_are_marked_at_once() -> None:
    members = Members([dead_url()], [dead_url()])
    for content, expected in ((body(), [True, False]), (MEDIA, [False, True])):
        with pytest.raises(WorkerUnavailable):
            asyncio.run(chatted(members, content))
        assert healthy(members) == expected
    assert idle(members)


def test_an_encode_worker_that_is_too_slow_is_replaced() -> None:
    slow = EndlessEncode()
    with (
        serving(encode_app(slow)) as first,
        serving(encode_app(FakeEncode())) as second,
        serving(chat_app(ScriptedChat())) as p,
    ):
        members = Members([first, second], [p])
        assert asyncio.run(chatted(members, MEDIA, encode_seconds=0.5))[0] == 200
        assert slow.cancelled.wait(WAIT_SECONDS)
    assert healthy(members) == [True, True, True]


def test_a_refusal_of_an_encode_worker_is_passed_on_and_nothing_else_is_tried() -> None:
    failure = MediaFetchFailed("HTTP 404", item="image 1")
    encode, other, chat = FakeEncode(failure), FakeEncode(failure), ScriptedChat()
    with serving(encode_app(encode)) as e, serving(encode_app(other)) as o, serving(chat_app(chat)) as p:
        status, reply = asyncio.run(chatted(Members([e, o], [p]), MEDIA))
    assert status == 422
    assert b"image 1: HTTP 404" in reply
    assert (len(encode.requests) + len(other.requests), len(chat.requests)) == (1, 0)


def test_a_prefill_decode_worker_that_dies_is_not_tried_elsewhere() -> None:
    other = ScriptedChat()

    async def fails() -> None:
        with pytest.raises(WorkerUnavailable):
            await chatted(members, body())

    async def killed() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == "busy\n"
            process.kill()

    with worker_process("silent") as (process, url), serving(chat_app(other)) as second:
        members = Members([], [url, second])
        asyncio.run(killed())
    assert other.requests == []


def test_models_come_from_a_prefill_decode_worker() -> None:
    async def listed(members: Members) -> tuple[int, bytes]:
        upstream = Upstream(4)
        async with upstream.opened():
            await probe_all(members, upstream, WAIT_SECONDS)
            return await Proxy(members, upstream, 1.0).models()

    with serving(chat_app(ScriptedChat())) as p:
        status, reply = asyncio.run(listed(Members([], [p])))
    assert status == 200
    assert b'"tiny"' in reply
