from __future__ import annotations

import json

import openai
import pytest

from tests.api.client import connect_and_send, get, post
from tests.api.openai.bodies import MODEL, body, image, text, with_parts
from tests.api.services import ANSWER, EndlessChat, EndlessEncode, FakeEncode, ScriptedChat
from tests.api.serving import WAIT_SECONDS, chat_app, encode_app, new_metrics, serving
from tests.router.routing import dead_url, routing
from tests.router.worker_program import worker_process
from triptych.api.http import worker_app
from triptych.api.service import ReadyState
from triptych.config import ServerConfig
from triptych.errors import EmbeddingUnavailable, MediaInvalid, PromptTooLong, QueueFull
from triptych.messages import MediaPart, TextDelta, TextPart

AUDIO = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}, "uuid": "sound"}
MEDIA = with_parts(
    text("a"), image("data:,1", uuid="x"), text("b"), AUDIO, image("data:,2"), image("data:,1")
)


def test_an_id_that_no_worker_would_take_is_refused() -> None:
    with serving(chat_app(ScriptedChat())) as p, routing([], [p]) as url:
        reply = post(url, with_parts(text("a")), {"x-request-id": "a" * 30_000})
    assert reply.status == 400
    assert reply.json()["error"]["code"] == "invalid_request"


def test_media_come_back_as_references_in_order_with_their_uuids() -> None:
    encode, chat = FakeEncode(), ScriptedChat()
    with (
        serving(encode_app(encode)) as e,
        serving(chat_app(chat)) as p,
        routing([e], [p]) as url,
    ):
        reply = post(url, MEDIA, {"x-request-id": "mine"})
    assert (reply.status, reply.json()["choices"][0]["message"]["content"]) == (200, "Hello")
    assert reply.headers["x-request-id"] == "mine"
    assert [item.source for item in encode.requests[0].items] == [
        "data:,1",
        "data:audio/wav;base64,AAAA",
        "data:,2",
        "data:,1",
    ]
    request = chat.requests[0]
    assert (encode.requests[0].label, request.label) == ("mine", "mine")
    assert request.messages[0].content == (
        TextPart(text="a"),
        MediaPart(item=0),
        TextPart(text="b"),
        MediaPart(item=1),
        MediaPart(item=2),
        MediaPart(item=3),
    )
    assert [(item.name, item.uuid, item.source, item.handle) for item in request.items] == [
        ("image 1", "x", None, "signed:key-image-0"),
        ("audio 1", "sound", None, "signed:key-audio-0"),
        ("image 2", None, None, "signed:key-image-1"),
        ("image 3", None, None, "signed:key-image-0"),
    ]
    assert {timing.stage for timing in request.item_timings} == {"fetch", "process"}


def test_the_official_client_streams_through_the_router() -> None:
    with (
        serving(encode_app(FakeEncode())) as e,
        serving(chat_app(ScriptedChat())) as p,
        routing([e], [p]) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=WAIT_SECONDS) as api,
    ):
        assert [model.id for model in api.models.list()] == [MODEL]
        stream = api.chat.completions.create(
            model=MODEL,
            messages=[
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,1"}}]},
            ],
            stream=True,
        )
        words = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(words) == "Hello"


def test_text_is_served_while_the_encode_worker_is_dead() -> None:
    with serving(chat_app(ScriptedChat())) as p, routing([dead_url()], [p]) as url:
        health, words, media = get(url, "/health"), post(url, body()), post(url, MEDIA)
    assert (health.status, health.json()) == (503, {"status": "unavailable", "missing": ["encode"]})
    assert words.status == 200
    assert (media.status, media.error["code"], media.headers["retry-after"]) == (
        503,
        "worker_unavailable",
        "1",
    )


def test_without_prefill_decode_workers_nothing_is_served() -> None:
    with routing([], [dead_url()]) as url:
        health, words, models = get(url, "/health"), post(url, body()), get(url, "/v1/models")
    assert health.json()["missing"] == ["prefill-decode"]
    assert (words.status, words.error["code"]) == (503, "worker_unavailable")
    assert (models.status, models.headers["retry-after"]) == (503, "1")


def test_a_router_without_encode_workers_is_ready_for_text() -> None:
    with serving(chat_app(ScriptedChat())) as p, routing([], [p]) as url:
        assert get(url, "/health").json() == {"status": "ready", "missing": []}


def test_a_worker_that_becomes_ready_is_used() -> None:
    states: list[ReadyState] = ["starting"]
    app = worker_app(
        ServerConfig(), MODEL, "prefill-decode", lambda: states[-1], new_metrics(), ScriptedChat(), None
    )
    with serving(app) as p, routing([], [p], health_interval_seconds=0.01) as url:
        assert post(url, body()).status == 503
        states.append("ready")
        assert any(get(url, "/health").status == 200 for _ in range(2000))
        assert post(url, body()).status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_errors_of_an_encode_worker_pass_with_the_clients_item_name(stream: bool) -> None:
    failure = MediaInvalid("truncated", item="image 2")
    with (
        serving(encode_app(FakeEncode(failure))) as e,
        serving(chat_app(ScriptedChat())) as p,
        routing([e], [p]) as url,
    ):
        refused = post(url, with_parts(image("data:,1"), image("data:,2"), stream=stream))
        malformed = post(url, with_parts(text("a"), image("data:,1"), {"type": "image_url", "image_url": 5}))
    assert (refused.status, refused.error["message"]) == (400, "image 2: truncated")
    assert malformed.error["param"] == "messages[0].content[2].image_url"


def test_try_later_of_an_encode_worker_passes_with_retry_after() -> None:
    with (
        serving(encode_app(FakeEncode(QueueFull("busy")))) as e,
        serving(chat_app(ScriptedChat())) as p,
        routing([e], [p]) as url,
    ):
        reply = post(url, MEDIA)
    assert (reply.status, reply.error["code"], reply.headers["retry-after"]) == (429, "queue_full", "1")


def test_errors_of_a_prefill_decode_worker_pass_in_either_phase() -> None:
    script = [ANSWER[0], EmbeddingUnavailable("image 1 is gone")]
    with (
        serving(chat_app(ScriptedChat([PromptTooLong("too long")]))) as early,
        serving(chat_app(ScriptedChat(script))) as late,
        routing([], [early]) as first,
        routing([], [late]) as second,
    ):
        refused, broken = post(first, body(stream=True)), post(second, body(stream=True))
    assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded")
    *_, failure, done, _ = broken.text.split("\n\n")
    assert json.loads(failure.removeprefix("data: "))["error"]["code"] == "embedding_unavailable"
    assert done == "data: [DONE]"


def test_a_worker_killed_while_it_streams_ends_the_stream_with_an_error_event() -> None:
    with worker_process("streaming") as (process, p), routing([], [p]) as url:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=WAIT_SECONDS) as api:
            stream = api.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "hi"}], stream=True
            )
            words: list[str] = []

            def read_and_kill() -> None:
                for chunk in stream:
                    words.append(chunk.choices[0].delta.content or "")
                    if words[-1]:
                        process.kill()

            with pytest.raises(openai.APIError) as caught:
                read_and_kill()
    assert "".join(words) == "word"
    assert caught.value.code == "worker_unavailable"


@pytest.mark.parametrize("stream", [False, True])
def test_a_worker_killed_before_the_first_byte_is_503(stream: bool) -> None:
    with worker_process("silent") as (process, p), routing([], [p]) as url:
        connection = connect_and_send(url, body(stream=stream))
        assert process.stdout is not None
        assert process.stdout.readline() == "busy\n"
        process.kill()
        with connection, connection.makefile("rb") as reply:
            assert reply.readline() == b"HTTP/1.1 503 Service Unavailable\r\n"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels_at_the_worker(stream: bool) -> None:
    chat, encode = EndlessChat([TextDelta(text="a")]), EndlessEncode()
    with serving(encode_app(encode)) as e, serving(chat_app(chat)) as p, routing([e], [p]) as url:
        for service, content in ((chat, body(stream=stream)), (encode, MEDIA)):
            connection = connect_and_send(url, content)
            assert service.entered.wait(WAIT_SECONDS)
            connection.close()
            assert service.cancelled.wait(WAIT_SECONDS)


def test_requests_and_bodies_are_bounded() -> None:
    chat = EndlessChat()
    limits = ServerConfig(max_requests=1, max_body_bytes=1000)
    with serving(chat_app(chat)) as p, routing([], [p], server=limits) as url:
        assert post(url, body(user="x" * 2000)).status == 413
        with connect_and_send(url, body()):
            assert chat.entered.wait(WAIT_SECONDS)
            assert post(url, body()).status == 429


def test_requests_are_counted_by_what_came_of_them() -> None:
    metrics = new_metrics()
    with serving(chat_app(ScriptedChat())) as p, routing([], [p], metrics=metrics) as url:
        for content in (body(), body(stream=True), body(model="x"), b"not json", MEDIA):
            post(url, content)
        exposed = get(url, "/metrics").text
    for code, count in (("ok", 2), ("model_not_found", 1), ("invalid_request", 1), ("worker_unavailable", 1)):
        assert f'triptych_requests_total{{code="{code}",role="router"}} {count}.0' in exposed


def test_fields_that_the_router_does_not_know_reach_the_worker() -> None:
    with serving(chat_app(ScriptedChat())) as p, routing([], [p]) as url:
        assert post(url, body(n=2)).error["param"] == "n"
        assert post(url, body(return_token_ids=True)).json()["choices"][0]["token_ids"] == [7, 8, 9]
