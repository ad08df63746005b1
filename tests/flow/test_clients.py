"""What users type: the official client and curl, against real servers of both layouts."""

from __future__ import annotations

import json
import subprocess

from openai import OpenAI
from openai.types.chat import ChatCompletionContentPartParam

from tests.flow.media import film, picture, sound
from tests.flow.served import Served

MODEL = "tiny-omni"


def client(server: Served) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)


def parts(seed: int = 1) -> list[ChatCompletionContentPartParam]:
    audio = sound(seed).url.partition(",")[2]
    return [
        {"type": "text", "text": "an image "},
        {"type": "image_url", "image_url": {"url": picture(seed).url}},
        {"type": "text", "text": " a sound "},
        {"type": "input_audio", "input_audio": {"data": audio, "format": "wav"}},
        {"type": "text", "text": " what are they?"},
    ]


def test_the_official_client_gets_the_same_answer_whole_and_streamed(server: Served) -> None:
    with client(server) as api:
        whole = api.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": parts()}], temperature=0, max_tokens=12
        )
        stream = api.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": parts()}],
            temperature=0,
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert whole.choices[0].message.content == text
    assert whole.usage is not None
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason


def test_the_official_client_gets_logprobs(server: Served) -> None:
    with client(server) as api:
        reply = api.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hello"}],
            temperature=0,
            max_tokens=5,
            logprobs=True,
            top_logprobs=3,
        )
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 5
    for token in logprobs.content:
        assert len(token.top_logprobs) == 3
        assert token.logprob == max(rival.logprob for rival in token.top_logprobs)


def test_a_seed_repeats_and_greedy_ignores_it(server: Served) -> None:
    def answer(seed: int, temperature: float) -> str | None:
        reply = api.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hello"}],
            temperature=temperature,
            seed=seed,
            max_tokens=12,
        )
        return reply.choices[0].message.content

    with client(server) as api:
        assert answer(7, 1.5) == answer(7, 1.5)
        assert answer(1, 0) == answer(2, 0)


def test_curl_streams_a_video_question(server: Served) -> None:
    body = {
        "model": MODEL,
        "stream": True,
        "max_tokens": 6,
        "temperature": 0,
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "video_url", "video_url": {"url": film(3).url}},
                    {"type": "text", "text": "what moves?"},
                ],
            }
        ],
    }
    done = subprocess.run(
        ["curl", "-sS", "-N", f"{server.url}/v1/chat/completions", "--json", "@-"],
        input=json.dumps(body).encode(),
        capture_output=True,
        timeout=120,
        check=True,
    )
    lines = [line for line in done.stdout.decode().splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    assert all(line.startswith("data: ") for line in lines)
    assert json.loads(lines[-2][6:])["choices"][0]["finish_reason"] in ("stop", "length")


def test_models_health_and_metrics_answer(server: Served) -> None:
    assert server.get("/health")[0] == 200
    status, raw = server.get("/v1/models")
    assert status == 200
    assert [model["id"] for model in json.loads(raw)["data"]] == [MODEL]
    status, raw = server.get("/metrics")
    assert status == 200
    assert b"triptych_requests_total" in raw


def test_timings_name_every_stage_once(server: Served) -> None:
    status, reply = server.post(
        {
            "model": MODEL,
            # Media that no cache has seen: a hit is neither decoded nor processed.
            "messages": [{"role": "user", "content": parts(seed=99)}],
            "max_tokens": 4,
            "include_timings": True,
        }
    )
    assert status == 200
    assert {"fetch", "media_decode", "process", "encode", "transfer", "prefill", "decode"} <= set(
        reply["timings_ms"]
    )
    assert all(milliseconds >= 0 for milliseconds in reply["timings_ms"].values())
