"""Prepare: media items → decoded media. Fetches and decodes all items of a request side by side."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

from triptych.config import DecodeConfig, MediaConfig
from triptych.errors import DeadlineExceeded, InvalidRequest, MediaError, MediaLimitExceeded
from triptych.media.audio import decode_audio
from triptych.media.fetch import Fetcher
from triptych.media.image import decode_image
from triptych.media.pool import DecodePool, Lane
from triptych.media.types import Decoded, DecodePolicy, PreparedItem, SkippedItem
from triptych.media.video import decode_video
from triptych.messages import MediaItem, Modality, StageTiming
from triptych.telemetry import FETCH, MEDIA_DECODE

Wanted = Callable[[MediaItem, str], bool]
"""Told an item and the digest of its source: should it be decoded? Runs on the event loop; must not block."""

_TAIL = 256
_INLINE_BYTES = 64 * 1024
"""Hashed at once up to this; a thread would cost more."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Items with the same source and modality, by their positions in the request: one fetch, one decode."""

    source: str
    modality: Modality
    positions: list[int]


@dataclass(frozen=True, slots=True)
class _GroupResult:
    digest: str
    decoded: Decoded | None
    timings: tuple[StageTiming, ...]


class Preparer:
    """One event loop. `fetcher` and `pool` belong to whoever made them."""

    def __init__(self, fetcher: Fetcher, pool: DecodePool, config: MediaConfig) -> None:
        self._config = config
        self._fetcher = fetcher
        self._pool = pool

    async def prepare(
        self,
        items: Sequence[MediaItem],
        policy: DecodePolicy,
        deadline_seconds: float,
        wanted: Wanted | None = None,
    ) -> tuple[PreparedItem | SkippedItem, ...]:
        """Prepare all items together; the result is in the order of `items`.

        Items for which `wanted` says no are fetched and hashed but not decoded. If any fails, the others
        settle first. A cancel reaches every item, and is raised when all have let go.

        Raises:
            MediaError: of the first item, in request order, that failed; it names the item.
            MediaLimitExceeded: too many items.
            InvalidRequest: an item has metadata in place of a source.
            DeadlineExceeded: not all done within `deadline_seconds`.
        """
        if len(items) > self._config.max_items:
            raise MediaLimitExceeded(
                f"the request has {len(items)} media items; at most {self._config.max_items} are accepted"
            )
        groups = _grouped(items)
        lane = self._pool.lane()
        try:
            async with asyncio.timeout(deadline_seconds):
                outcomes = await asyncio.gather(
                    *(
                        self._prepare(group, items, policy, deadline_seconds, lane, wanted)
                        for group in groups
                    ),
                    return_exceptions=True,
                )
        except TimeoutError as error:
            raise DeadlineExceeded("the deadline passed while media was being prepared") from error
        prepared: list[PreparedItem | SkippedItem | None] = [None] * len(items)
        for group, outcome in zip(groups, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                raise _named(outcome, items[group.positions[0]])
            for position in group.positions:
                prepared[position] = _result(items[position], outcome)
        return tuple(item for item in prepared if item is not None)

    async def _prepare(
        self,
        group: _Group,
        items: Sequence[MediaItem],
        policy: DecodePolicy,
        deadline_seconds: float,
        lane: Lane,
        wanted: Wanted | None,
    ) -> _GroupResult:
        started = time.perf_counter()
        data = await self._fetcher.fetch(group.source, deadline_seconds)
        digest = await _digest(data)
        fetched = time.perf_counter()
        timings = (StageTiming(stage=FETCH, milliseconds=(fetched - started) * 1000),)
        # Every item is asked about, not the first only: the caller may count or pin what it has per item.
        answers = [wanted is None or wanted(items[position], digest) for position in group.positions]
        if not any(answers):
            return _GroupResult(digest, None, timings)
        decoded = await lane.run(_decode, group.modality, data, policy, self._config.decode)
        milliseconds = (time.perf_counter() - fetched) * 1000
        return _GroupResult(
            digest, decoded, (*timings, StageTiming(stage=MEDIA_DECODE, milliseconds=milliseconds))
        )


def _grouped(items: Sequence[MediaItem]) -> list[_Group]:
    groups: list[_Group] = []
    # Numbers of groups by what is quick to hash: sources may be data URLs of many megabytes.
    alike: dict[tuple[Modality, int, str], list[int]] = {}
    for position, item in enumerate(items):
        if item.source is None:
            raise InvalidRequest(f"{item.name}: has no source to prepare it from")
        numbers = alike.setdefault((item.modality, len(item.source), item.source[-_TAIL:]), [])
        same = next((number for number in numbers if groups[number].source == item.source), None)
        if same is None:
            numbers.append(len(groups))
            groups.append(_Group(item.source, item.modality, [position]))
        else:
            groups[same].positions.append(position)
    return groups


def _named(error: BaseException, item: MediaItem) -> BaseException:
    if not isinstance(error, MediaError):
        return error
    named = error.named(item.name)
    named.__cause__ = error.__cause__
    return named


def _result(item: MediaItem, group: _GroupResult) -> PreparedItem | SkippedItem:
    if group.decoded is None:
        return SkippedItem(item, group.digest, group.timings)
    return PreparedItem(item, group.digest, group.decoded, group.timings)


async def _digest(data: bytes) -> str:
    if len(data) <= _INLINE_BYTES:
        return hashlib.sha256(data).hexdigest()
    return await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())


def _decode(modality: Modality, data: bytes, policy: DecodePolicy, config: DecodeConfig) -> Decoded:
    match modality:
        case "image":
            return decode_image(data, config)
        case "audio":
            return decode_audio(data, policy.audio_sample_rate_hz, config)
        case "video":
            return decode_video(data, policy.sample_frames, config)
        case _:
            assert_never(modality)
