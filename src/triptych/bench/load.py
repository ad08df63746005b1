"""A closed-loop load on any OpenAI server, and what came of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from triptych.errors import TriptychError

_REQUEST_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request: its text, time to first token and whole time."""

    text: str
    ttft_seconds: float
    total_seconds: float
    num_prompt_tokens: int
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class LoadResult:
    outcomes: tuple[Outcome, ...]
    wall_seconds: float

    @property
    def requests_per_second(self) -> float:
        return len(self.outcomes) / self.wall_seconds

    def ttft_seconds(self, quantile: float) -> float:
        values = sorted(outcome.ttft_seconds for outcome in self.outcomes)
        return values[min(len(values) - 1, int(quantile * len(values)))]

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(outcome.text for outcome in self.outcomes)


async def run_load(url: str, bodies: Sequence[dict[str, object]], concurrency: int) -> LoadResult:
    """Send every body, `concurrency` at a time, streamed; outcomes keep the order of `bodies`.

    Raises:
        TriptychError: a request failed: a load with failures is no measurement.
    """
    slots = asyncio.Semaphore(concurrency)
    timeout = aiohttp.ClientTimeout(total=_REQUEST_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        begun = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_one(session, url, body, slots)) for body in bodies]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        wall_seconds = time.perf_counter() - begun
    return LoadResult(tuple(task.result() for task in tasks), wall_seconds)


async def _one(
    session: aiohttp.ClientSession, url: str, body: dict[str, object], slots: asyncio.Semaphore
) -> Outcome:
    async with slots:
        begun = time.perf_counter()
        try:
            async with session.post(f"{url}/v1/chat/completions", json=body) as reply:
                if reply.status != 200:
                    raise TriptychError(f"{url} answered {reply.status}: {(await reply.text())[:300]}")
                return await _read(reply, begun)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise TriptychError(f"{url} did not answer: {error or type(error).__name__}") from error


async def _read(reply: aiohttp.ClientResponse, begun: float) -> Outcome:
    text, first, usage = "", None, {"prompt_tokens": 0, "completion_tokens": 0}
    async for line in reply.content:
        data = line.removeprefix(b"data: ").strip()
        if not line.startswith(b"data: ") or data == b"[DONE]":
            continue
        event = json.loads(data)
        if "error" in event:
            raise TriptychError(f"failed while streaming: {event['error']}")
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            piece = choice["delta"].get("content") or ""
            if piece and first is None:
                first = time.perf_counter()
            text += piece
    ended = time.perf_counter()
    return Outcome(
        text=text,
        ttft_seconds=(first or ended) - begun,
        total_seconds=ended - begun,
        num_prompt_tokens=usage["prompt_tokens"],
        num_output_tokens=usage["completion_tokens"],
    )
