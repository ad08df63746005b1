"""A prepare stage, requests for it and a sampler that holds a decoding thread."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.media.make_server import until
from triptych.config import FetchConfig, MediaConfig
from triptych.media.fetch import Fetcher
from triptych.media.pool import DecodePool
from triptych.media.sample import UniformSampler
from triptych.media.types import (
    DecodedImage,
    DecodePolicy,
    PreparedItem,
    SkippedItem,
    VideoInfo,
)
from triptych.messages import MediaItem, Modality
from triptych.stages.prepare import Preparer

CONFIG = MediaConfig(fetch=FetchConfig(allowed_networks=("127.0.0.1/32",), backoff_seconds=0.001))
POLICY = DecodePolicy(audio_sample_rate_hz=16_000, sample_frames=UniformSampler(4), options_digest="")
DEADLINE_SECONDS = 20
RED, GREEN = (255, 0, 0), (0, 255, 0)


@dataclass
class HeldSampler:
    """Keeps its decoding thread until told to go on; counts how often it was asked."""

    started: threading.Event
    release: threading.Event
    num_calls: int = 0

    def __call__(self, info: VideoInfo) -> tuple[int, ...]:
        self.num_calls += 1
        self.started.set()
        assert self.release.wait(DEADLINE_SECONDS)
        return (0,)


def held_sampler() -> HeldSampler:
    return HeldSampler(threading.Event(), threading.Event())


async def loopback(host: str, port: int) -> Sequence[str]:
    return ["127.0.0.1"]


@asynccontextmanager
async def preparer(config: MediaConfig = CONFIG, num_threads: int = 2) -> AsyncGenerator[Preparer]:
    fetcher = Fetcher(config.fetch, loopback)
    pool = DecodePool(num_threads)
    try:
        yield Preparer(fetcher, pool, config)
    finally:
        await fetcher.close()
        pool.close()


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    """Run a test, bounded, and check that it leaves no task behind."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})

    asyncio.run(bounded())


def images_of(*sources: str) -> list[MediaItem]:
    images: list[tuple[Modality, str]] = [("image", source) for source in sources]
    return items_of(*images)


def videos_of(*sources: str) -> list[MediaItem]:
    videos: list[tuple[Modality, str]] = [("video", source) for source in sources]
    return items_of(*videos)


def items_of(*sources: tuple[Modality, str]) -> list[MediaItem]:
    counts: dict[Modality, int] = {}
    items: list[MediaItem] = []
    for number, (modality, source) in enumerate(sources):
        index = counts.get(modality, 0)
        counts[modality] = index + 1
        items.append(MediaItem(modality=modality, index=index, source=source, uuid=f"uuid-{number}"))
    return items


def inline(data: bytes) -> str:
    return "data:;base64," + base64.b64encode(data).decode()


def corner(item: PreparedItem | SkippedItem) -> list[int]:
    assert isinstance(item, PreparedItem)
    assert isinstance(item.decoded, DecodedImage)
    return item.decoded.pixels[0, 0].tolist()
