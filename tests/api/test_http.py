from __future__ import annotations

import json
import subprocess

import openai
import pytest

from tests.api.client import CHAT, connect_and_send, get, post
from tests.api.openai.bodies import MODEL, body, image, with_parts
from tests.api.services import ANSWER, EndlessChat, EndlessEncode, FakeEncode, ScriptedChat
from tests.api.serving import WAIT_SECONDS, chat_app, encode_app, new_metrics, serving
from triptych.api.http import worker_app
from triptych.api.service import ReadyState
from triptych.api.status import INTERNAL_TEXT
from triptych.config import ServerConfig
from triptych.errors import ConfigError, EmbeddingUnavailable, MediaFetchFailed, QueueFull
from triptych.messages import Finished, TextDelta


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=WAIT_SECONDS)


def test_the_official_client_gets_a_whole_reply() -> None:
    service = ScriptedChat()
    with serving(chat_app(service)) as url, client(url) as api:
        assert [model.id for model in api.models.list()] == [MODEL]
        reply = api.chat.completions.create(
            model=MODEL,
            messages=[
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "look"},
                        {
                            "type": "image_url",
                            "image_url": {"url": "data:,1", "detail": "low"},
                        },
                    ],
                }
            ],
            max_completion_tokens=4,
        )
    assert reply.choices[0].message.content == "Hello"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.total_tokens == 8
    assert service.requests[0].items[0].source == "data:,1"


def test_the_official_client_streams() -> None:
    with serving(chat_app(ScriptedChat())) as url, client(url) as api:
        stream = api.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None


def test_the_official_client_sees_typed_errors() -> None:
    with serving(chat_app(ScriptedChat())) as url, client(url) as api:
        with pytest.raises(openai.NotFoundError) as unknown:
            api.chat.completions.create(model="other", messages=[{"role": "user", "content": "hi"}])
        with pytest.raises(openai.BadRequestError) as wrong:
            api.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}], n=2)
    assert unknown.value.code == "model_not_found"
    assert (wrong.value.code, wrong.value.param) == ("invalid_request", "n")


def test_curl_streams_events() -> None:
    options = ["-sSN", "-m", "20", "-H", "x-request-id: mine", "-D", "-", "-d", body(stream=True)]
    with serving(chat_app(ScriptedChat())) as url:
        done = subprocess.run(
            ["curl", *options, url + CHAT], capture_output=True, check=True, timeout=WAIT_SECONDS
        )
    head, events = done.stdout.decode().split("\r\n\r\n")
    assert "text/event-stream" in head
    assert "x-request-id: mine" in head
    assert events.startswith('data: {"id":"chatcmpl-')
    assert events.endswith("data: [DONE]\n\n")


def test_an_error_before_the_first_event_is_a_status_even_when_streaming() -> None:
    failure = MediaFetchFailed("HTTP 404", item="image 2")
    with serving(chat_app(ScriptedChat([failure]))) as url:
        reply = post(url, body(stream=True))
    assert reply.status == 422
    assert reply.json()["error"] == {
        "message": "image 2: HTTP 404",
        "type": "invalid_request_error",
        "code": "media_fetch_failed",
        "param": None,
    }


def test_an_error_after_the_first_event_is_the_last_event() -> None:
    script = [ANSWER[0], EmbeddingUnavailable("image 1 is gone")]
    with serving(chat_app(ScriptedChat(script))) as url:
        reply = post(url, body(stream=True))
    *_, failure, done, empty = reply.text.split("\n\n")
    assert reply.status == 200
    assert json.loads(failure.removeprefix("data: "))["error"]["code"] == "embedding_unavailable"
    assert (done, empty) == ("data: [DONE]", "")


def test_try_later_has_retry_after() -> None:
    with serving(chat_app(ScriptedChat([QueueFull("busy")]))) as url:
        reply = post(url, body())
    assert (reply.status, reply.headers["retry-after"]) == (429, "1")


def test_unknown_failures_show_no_internals() -> None:
    with serving(chat_app(ScriptedChat([ValueError("/secret")]))) as url:
        reply = post(url, body())
        assert post(url, body(model="x")).status == 404
    assert reply.status == 500
    assert reply.json()["error"]["message"] == INTERNAL_TEXT


def test_a_reply_that_we_cut_off_is_try_later() -> None:
    cut = Finished(finish_reason="cancelled", num_prompt_tokens=1, num_output_tokens=0)
    with serving(chat_app(ScriptedChat([cut]))) as url:
        assert post(url, body()).status == 503


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels_the_request(stream: bool) -> None:
    service, metrics = EndlessChat([TextDelta(text="a")]), new_metrics()
    with serving(chat_app(service, metrics=metrics)) as url:
        connection = connect_and_send(url, body(stream=stream))
        assert service.entered.wait(WAIT_SECONDS)
        connection.close()
        assert service.cancelled.wait(WAIT_SECONDS)
    labels = {"role": "prefill-decode", "code": "cancelled"}
    assert metrics.registry.get_sample_value("triptych_requests_total", labels) == 1


def test_a_client_that_leaves_cancels_encoding() -> None:
    service = EndlessEncode()
    with serving(encode_app(service)) as url:
        connection = connect_and_send(url, with_parts(image("data:,1")))
        assert service.entered.wait(WAIT_SECONDS)
        connection.close()
        assert service.cancelled.wait(WAIT_SECONDS)


def test_requests_beyond_the_limit_get_429_and_places_come_back() -> None:
    service = EndlessChat()
    with serving(chat_app(service, ServerConfig(max_requests=1))) as url:
        connection = connect_and_send(url, body())
        assert service.entered.wait(WAIT_SECONDS)
        refused = post(url, body())
        assert (refused.status, refused.json()["error"]["code"]) == (429, "queue_full")
        assert get(url, "/health").status == 200
        service.entered.clear()
        connection.close()
        assert service.cancelled.wait(WAIT_SECONDS)
        second = connect_and_send(url, body())
        assert service.entered.wait(WAIT_SECONDS)
        second.close()


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_beyond_the_limit_gets_413(announced: bool) -> None:
    content = body(user="x" * 4096)
    sent = content if announced else [content[:2000], content[2000:]]
    with serving(chat_app(ScriptedChat(), ServerConfig(max_body_bytes=1024))) as url:
        reply = post(url, sent)
        assert post(url, body()).status == 200
    assert (reply.status, reply.json()["error"]["code"]) == (413, "request_too_large")


def test_large_bodies_are_parsed_too() -> None:
    service = ScriptedChat()
    source = "data:image/png;base64," + "A" * 3_000_000
    with serving(chat_app(service)) as url:
        assert post(url, with_parts(image(source))).status == 200
    assert service.requests[0].items[0].source == source


@pytest.mark.parametrize("state", ["starting", "draining", "failed"])
def test_a_worker_that_is_not_ready_says_so(state: ReadyState) -> None:
    service = ScriptedChat()
    with serving(chat_app(service, state=state)) as url:
        health, reply = get(url, "/health"), post(url, body())
    assert (health.status, health.json()["status"]) == (503, state)
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert reply.json()["error"]["code"] == "worker_unavailable"
    assert service.requests == []


def test_a_ready_worker_says_so_and_counts_requests() -> None:
    with serving(chat_app(ScriptedChat(), role="all")) as url:
        assert get(url, "/health").json() == {"status": "ready", "role": "all"}
        post(url, body())
        post(url, body(model="x"))
        text = get(url, "/metrics").text
    assert 'triptych_requests_total{code="ok",role="all"} 1.0' in text
    assert 'triptych_requests_total{code="model_not_found",role="all"} 1.0' in text
    assert 'triptych_stage_seconds_count{stage="response"} 1.0' in text
    assert "vllm:num_requests_running" in text


def test_timings_have_the_response_stage_added() -> None:
    with serving(chat_app(ScriptedChat())) as url:
        timings = post(url, body(include_timings=True)).json()["timings_ms"]
    assert list(timings) == ["prefill", "decode", "response"]


def test_an_encode_worker_answers_with_handles() -> None:
    content = with_parts(image("data:,1", uuid="a"), image("data:,2"), image("data:,1", uuid="b"))
    with serving(encode_app(FakeEncode())) as url:
        reply = post(url, content)
    params = reply.json()["ec_transfer_params"]
    assert [(handle["item_indices"], handle["uuids"]) for handle in params.values()] == [
        ([0, 2], ["a", "b"]),
        ([1], []),
    ]


def test_an_encode_worker_names_the_item_that_failed() -> None:
    failure = MediaFetchFailed("HTTP 404", item="image 2")
    with serving(encode_app(FakeEncode(failure))) as url:
        reply = post(url, with_parts(image("data:,1"), image("data:,2")))
    assert (reply.status, reply.json()["error"]["message"]) == (422, "image 2: HTTP 404")


def test_a_role_without_its_service_cannot_be_built() -> None:
    with pytest.raises(ConfigError, match="needs a chat service"):
        worker_app(ServerConfig(), MODEL, "all", lambda: "ready", new_metrics(), None, FakeEncode())
    with pytest.raises(ConfigError, match="needs an encode service"):
        worker_app(ServerConfig(), MODEL, "encode", lambda: "ready", new_metrics(), ScriptedChat(), None)
