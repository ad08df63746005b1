"""How many requests with a picture does a server answer a second, and how soon does the text begin?

Layouts of ours and other servers take turns on the same new pictures, round by round, on an otherwise idle
machine; outputs are compared first.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from triptych.bench.load import LoadResult, run_load
from triptych.bench.photos import photo_url
from triptych.bench.report import Result, compared, show
from triptych.errors import StartupError

_HOST = "127.0.0.1"
_START_SECONDS = 300.0
_STOP_SECONDS = 30.0
LAYOUTS = ("none", "e+pd")


@dataclass(frozen=True, slots=True)
class ServeBench:
    """`peers` are (name, URL, model name) of servers that run already; all get the same requests."""

    model: Path
    peers: tuple[tuple[str, str, str], ...] = ()
    num_requests: int = 64
    concurrency: int = 8
    max_tokens: int = 16
    rounds: int = 5


def bench_serve(bench: ServeBench, console: Console, *, as_json: bool) -> None:
    """Raises StartupError if a layout does not start, TriptychError if a request fails."""
    with ExitStack() as stack:
        ours = {layout: stack.enter_context(_layout(bench.model, layout)) for layout in LAYOUTS}
        targets = [(layout, url, bench.model.name) for layout, url in ours.items()] + list(bench.peers)
        runs: dict[str, list[LoadResult]] = {name: [] for name, _, _ in targets}
        for number in range(-1, bench.rounds):
            for name, url, model in targets:
                result = asyncio.run(run_load(url, _bodies(bench, model, number + 1), bench.concurrency))
                if number >= 0:  # The first round warms up every server.
                    runs[name].append(result)
    show(_results(bench, runs), _notes(bench, runs), console, as_json=as_json)


def _bodies(bench: ServeBench, model: str, number: int) -> list[dict[str, object]]:
    """Pictures of this round only: no cache of any server has seen them."""
    first = number * bench.num_requests
    return [_body(model, photo_url(first + i), bench.max_tokens) for i in range(bench.num_requests)]


def _body(model: str, url: str, max_tokens: int) -> dict[str, object]:
    content = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "describe this image"},
    ]
    return {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _results(bench: ServeBench, runs: dict[str, list[LoadResult]]) -> list[Result]:
    found: list[Result] = []
    baselines = [name for name, _, _ in bench.peers] or ["none"]
    for baseline in baselines:
        for layout in LAYOUTS:
            if layout != baseline:
                found.extend(_pair(layout, runs[layout], baseline, runs[baseline]))
    return found


def _pair(
    name: str, ours: Sequence[LoadResult], baseline: str, theirs: Sequence[LoadResult]
) -> Iterator[Result]:
    equal = all(a.texts == b.texts for a, b in zip(ours, theirs, strict=True))
    yield compared(
        "serve",
        f"{name} requests/s",
        "requests/s",
        [run.requests_per_second for run in ours],
        baseline,
        [run.requests_per_second for run in theirs],
        higher_is_better=True,
        equal=equal,
    )
    for quantile in (0.5, 0.9):
        yield compared(
            "serve",
            f"{name} TTFT p{round(quantile * 100)}",
            "ms",
            [run.ttft_seconds(quantile) * 1000 for run in ours],
            baseline,
            [run.ttft_seconds(quantile) * 1000 for run in theirs],
            higher_is_better=False,
            equal=equal,
        )


def _notes(bench: ServeBench, runs: dict[str, list[LoadResult]]) -> list[str]:
    one = next(iter(runs.values()))[0].outcomes[0]
    lines = [
        f"{bench.num_requests} requests a round, {bench.concurrency} at a time, one new 640×360 JPEG each, "
        f"{one.num_prompt_tokens} + {one.num_output_tokens} tokens; "
        f"medians over {bench.rounds} alternating rounds"
    ]
    for name, results in runs.items():
        first = next(iter(runs.values()))
        pairs = [
            a.text == b.text
            for ours, theirs in zip(first, results, strict=True)
            for a, b in zip(ours.outcomes, theirs.outcomes, strict=True)
        ]
        lines.append(f"{name}: {sum(pairs)} of {len(pairs)} texts equal to {next(iter(runs))}")
    return lines


@contextmanager
def _layout(model: Path, layout: str) -> Generator[str]:
    with socket.create_server((_HOST, 0)) as sock:
        port = sock.getsockname()[1]
    argv = [sys.executable, "-m", "triptych", "serve", str(model), "--layout", layout, "--port", str(port)]
    process = subprocess.Popen(argv)
    url = f"http://{_HOST}:{port}"
    try:
        _wait(process, url)
        yield url
    finally:
        process.terminate()
        process.wait(_STOP_SECONDS)


def _wait(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with direct.open(f"{url}/health", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise StartupError("the server did not start; its own message is above")
