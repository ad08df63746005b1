"""The engine process, here on a thread: it loads the language half and serves until its front closes."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import aclosing
from pathlib import Path

import pytest

from tests.launch.acting import SECONDS
from triptych.config import LanguageConfig, ModelConfig, TransportConfig
from triptych.errors import CheckpointError
from triptych.language.client import EngineClient
from triptych.launch.engine import run_engine
from triptych.launch.engine_spec import EngineSpec
from triptych.messages import EngineReady, GenerateRequest, SamplingParams, TokenEvent

pytestmark = pytest.mark.usefixtures("own_threads")
SAMPLING = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)


def spec(model: Path) -> EngineSpec:
    return EngineSpec(
        model=ModelConfig(path=model, served_name="tiny"),
        language=LanguageConfig(kv_pool_bytes=4 << 20, max_context_tokens=512),
        transport=TransportConfig(),
        secret=b"0123456789abcdef",
    )


async def generated(sock: socket.socket) -> tuple[EngineReady, list[TokenEvent]]:
    client = EngineClient(sock)
    try:
        ready = await client.ready(SECONDS)
        request = GenerateRequest(
            request_id="r", token_ids=(1, 2, 3), items=(), sampling=SAMPLING, deadline_ms=20_000
        )
        async with aclosing(client.generate(request)) as events:
            return ready, [event async for event in events]
    finally:
        client.close()


def test_it_generates_and_ends_with_its_front(tiny_omni: Path) -> None:
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=run_engine, args=(spec(tiny_omni), theirs))
    thread.start()
    ready, events = asyncio.run(generated(ours))
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert ready.max_context_tokens == 512
    assert ready.kv_page_tokens == 16
    assert len(events) == 4
    assert events[-1].finish_reason == "length"
    assert theirs.fileno() == -1


def test_the_front_learns_why_an_engine_cannot_start(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    run_engine(spec(tmp_path), theirs)
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        asyncio.run(EngineClient(ours).ready(SECONDS))
