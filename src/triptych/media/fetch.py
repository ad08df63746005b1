"""Bytes of a media source, of whatever kind."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import assert_never

from triptych.config import FetchConfig
from triptych.errors import DeadlineExceeded, MediaFetchFailed, MediaLimitExceeded, MediaSourceRefused
from triptych.media.address import Lookup
from triptych.media.download import Downloader, system_lookup
from triptych.media.flight import SingleFlight
from triptych.media.source import DataSource, FileSource, HttpSource, decode_data, is_data_url, parse_source

_INLINE_CHARACTERS = 64 * 1024
"""A data URL up to this is read at once; a thread would cost more."""


class Fetcher:
    """Fetches sources. Files and URLs once at a time: who asks for one under way waits for the same bytes.

    One event loop. `lookup` resolves host names; what it yields is checked like any address.
    """

    def __init__(self, config: FetchConfig, lookup: Lookup = system_lookup) -> None:
        self._config = config
        self._downloader = Downloader(config, lookup)
        self._flights: SingleFlight[bytes] = SingleFlight()
        # One large data URL at a time: reading it holds the interpreter lock, which the event loop needs too.
        self._reading = asyncio.Lock()

    async def fetch(self, source: str, deadline_seconds: float) -> bytes:
        """The bytes of `source`. Cancelling one waiter leaves the others theirs; the last one ends the fetch.

        Raises:
            MediaSourceRefused: malformed, or its scheme, host, address or path is not allowed.
            MediaFetchFailed: a permanent failure, or it kept failing or timing out.
            MediaLimitExceeded: too many bytes.
            DeadlineExceeded: not there within `deadline_seconds`.
            WorkerUnavailable: closed meanwhile.
        """
        try:
            async with asyncio.timeout(deadline_seconds):
                if is_data_url(source):
                    return await self._read_data(source)
                return await self._flights.run(source, lambda: self._fetch(source))
        except TimeoutError as error:
            raise DeadlineExceeded("the deadline passed while media was being fetched") from error

    async def close(self) -> None:
        """Cancel what is under way and close all connections. Can be called twice."""
        await self._flights.close()
        await self._downloader.close()

    async def _read_data(self, source: str) -> bytes:
        if len(source) <= _INLINE_CHARACTERS:
            return read_local(source, self._config)
        async with self._reading:
            return await asyncio.to_thread(read_local, source, self._config)

    async def _fetch(self, source: str) -> bytes:
        parsed = parse_source(source)
        if isinstance(parsed, HttpSource):
            return await self._downloader.download(parsed.url)
        return await asyncio.to_thread(read_local, source, self._config)


def read_local(source: str, config: FetchConfig) -> bytes:
    """The bytes of a data or file URL. Blocks.

    Raises:
        MediaSourceRefused, MediaFetchFailed, MediaLimitExceeded: as `Fetcher.fetch`.
    """
    parsed = parse_source(source)
    match parsed:
        case DataSource():
            return decode_data(parsed, config.max_source_bytes)
        case FileSource():
            return read_file(parsed, config)
        case HttpSource():
            raise MediaSourceRefused("the source is not local")
        case _:
            assert_never(parsed)


def read_file(source: FileSource, config: FetchConfig) -> bytes:
    """The bytes of a regular file below `config.file_root`, symlinks resolved first. Blocks.

    Raises:
        MediaSourceRefused: there is no root, or the path leads out of it.
        MediaFetchFailed: no such regular file, or it cannot be read.
        MediaLimitExceeded: too many bytes.
    """
    if config.file_root is None:
        raise MediaSourceRefused("file: URLs are off: the server has no file root (allowed local media path)")
    try:
        path = Path(source.path).resolve()
        root = config.file_root.resolve()
    except (OSError, RuntimeError) as error:
        raise MediaSourceRefused("the path cannot be resolved") from error
    if not path.is_relative_to(root):
        raise MediaSourceRefused("the path must be a subpath of the server's file root")
    try:
        # NONBLOCK: opening a FIFO must not wait for a writer. NOFOLLOW: the last link was resolved above.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise MediaFetchFailed("the file cannot be opened") from error
    try:
        return _read_regular(descriptor, config.max_source_bytes)
    finally:
        os.close(descriptor)


def _read_regular(descriptor: int, max_bytes: int) -> bytes:
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise MediaFetchFailed("the path is not a regular file")
        if status.st_size > max_bytes:
            raise MediaLimitExceeded(f"the file has more than {max_bytes} bytes")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(status.st_size)
    except OSError as error:
        raise MediaFetchFailed("the file cannot be read") from error
