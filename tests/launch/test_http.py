"""The server ends when it is told to, and what was started around it goes on to clean up."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tests.api.client import get
from tests.launch.acting import SECONDS, run_while
from triptych.config import ServerConfig
from triptych.launch.http import http_server, run_http, run_loop, run_server
from triptych.launch.processes import listen

pytestmark = pytest.mark.usefixtures("own_signals")


async def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


def test_sigterm_ends_the_server_and_what_follows_it_runs() -> None:
    cleaned_up: list[bool] = []
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    async def main() -> None:
        await run_http(Starlette(routes=[Route("/", hello)]), ServerConfig(), listener)
        cleaned_up.append(True)

    run_while(lambda: run_loop(main()), lambda: _expect_hello(url))
    assert cleaned_up == [True]
    assert listener.fileno() == -1


def test_a_request_under_way_is_answered_before_the_end() -> None:
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    async def slow(request: Request) -> PlainTextResponse:
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(SECONDS):
            while not server.should_exit:  # noqa: ASYNC110 -- uvicorn has no event for it
                await asyncio.sleep(0.002)
        return PlainTextResponse("hello")

    server = http_server(Starlette(routes=[Route("/", slow)]), ServerConfig())
    run_while(lambda: run_loop(run_server(server, listener)), lambda: _expect_hello(url))


def test_a_request_that_never_ends_is_left_after_the_grace_period() -> None:
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    entered = threading.Event()

    async def stuck(request: Request) -> PlainTextResponse:
        entered.set()
        await asyncio.Event().wait()
        return PlainTextResponse("never")

    def act() -> None:
        threading.Thread(target=_expect_an_end, args=(url,)).start()
        assert entered.wait(SECONDS)

    app = Starlette(routes=[Route("/", stuck)])
    run_while(lambda: run_loop(run_http(app, ServerConfig(drain_seconds=0.1), listener)), act)


def test_the_drain_time_is_the_servers() -> None:
    server = http_server(Starlette(), ServerConfig(drain_seconds=7.0))
    assert isinstance(server.config, uvicorn.Config)
    assert server.config.timeout_graceful_shutdown == 7


def _expect_hello(url: str) -> None:
    assert get(url, "/").text == "hello"


def _expect_an_end(url: str) -> None:
    try:
        assert get(url, "/").status >= 500
    except OSError:
        return
