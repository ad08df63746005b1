"""The router process: small, quick to start, and ended by a signal."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.api.client import get, post
from tests.api.openai.bodies import body
from tests.api.services import ANSWER, ScriptedChat
from tests.api.serving import chat_app, serving
from tests.launch.acting import run_while
from triptych.config import RouterConfig, ServerConfig
from triptych.launch.processes import listen
from triptych.launch.router import run_router
from triptych.messages import TextDelta

HEAVY = ("torch", "torchvision", "transformers", "av", "numpy")


@pytest.mark.parametrize(
    "module", ["triptych.launch.router", "triptych.launch.worker", "triptych.launch.serve"]
)
def test_nothing_heavy_is_imported_before_it_is_needed(module: str) -> None:
    program = f"import sys, {module}; print(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == []


@pytest.mark.usefixtures("own_signals")
def test_a_router_relays_until_it_is_told_to_end() -> None:
    text = "".join(event.text for event in ANSWER if isinstance(event, TextDelta))
    with serving(chat_app(ScriptedChat())) as worker:
        listener = listen("127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def act() -> None:
            assert get(url, "/health").status == 200
            reply = post(url, body())
            assert reply.json()["choices"][0]["message"]["content"] == text

        config = RouterConfig((), (worker,), server=ServerConfig(drain_seconds=1.0))
        run_while(lambda: run_router(config, listener), act)
