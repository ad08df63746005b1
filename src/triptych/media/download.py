"""Bytes from an http(s) URL, within limits: redirects by hand, retries, sizes checked while streaming."""

from __future__ import annotations

import asyncio
import socket
import zlib
from collections.abc import AsyncIterator, Sequence

import aiohttp
from yarl import URL

from triptych.config import FetchConfig
from triptych.errors import MediaFetchFailed, MediaLimitExceeded, MediaSourceRefused
from triptych.media.address import AddressPolicy, BlockedAddress, CheckedResolver, Lookup, blocked
from triptych.media.source import parse_source

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TRANSIENT = frozenset({408, 429})
_CHUNK_BYTES = 256 * 1024
_INFLATE_BYTES = 1024 * 1024
_ZLIB_OR_GZIP = zlib.MAX_WBITS | 32
_HEADERS = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "triptych"}


class _Transient(Exception):
    """Worth another try; the text says what happened."""


async def system_lookup(host: str, port: int) -> Sequence[str]:
    """Addresses of a host as the operating system knows them."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [str(info[4][0]) for info in found]


class Downloader:
    """Owns one HTTP session, made on first use. One event loop.

    `FetchConfig.total_seconds` bounds one try, from dialling to the last byte, over all redirects.
    """

    def __init__(self, config: FetchConfig, lookup: Lookup = system_lookup) -> None:
        self._config = config
        self._policy = AddressPolicy(config)
        self._lookup = lookup
        self._session: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(config.max_concurrent)

    async def download(self, url: str) -> bytes:
        """
        Raises:
            MediaSourceRefused: the URL, or one that it redirects to, may not be opened.
            MediaFetchFailed: a permanent failure, or none of the tries succeeded.
            MediaLimitExceeded: too many bytes, as sent or decompressed.
        """
        async with self._slots:
            for number in range(1, self._config.max_attempts):
                try:
                    return await self._try(url)
                except _Transient:
                    await asyncio.sleep(self._config.backoff_seconds * 2 ** (number - 1))
            try:
                return await self._try(url)
            except _Transient as error:
                raise MediaFetchFailed(f"{error} (tried {self._config.max_attempts} times)") from error

    async def close(self) -> None:
        """Can be called twice."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _try(self, url: str) -> bytes:
        """One try, with the HTTP library's errors made ours."""
        try:
            async with asyncio.timeout(self._config.total_seconds):
                return await self._follow(_url(url))
        except TimeoutError as error:
            raise _Transient("the source timed out") from error
        except (aiohttp.InvalidURL, ValueError) as error:
            raise MediaSourceRefused("the URL is malformed") from error
        except (aiohttp.ClientSSLError, aiohttp.ClientResponseError) as error:
            raise MediaFetchFailed("the source does not speak proper HTTP or TLS") from error
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, BlockedAddress):
                raise blocked() from error
            raise _Transient("the source cannot be reached") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _Transient("the connection broke before the last byte") from error

    async def _follow(self, url: URL) -> bytes:
        for _ in range(self._config.max_redirects + 1):
            self._policy.check_url(url)
            async with self._open_session().get(url, allow_redirects=False) as response:
                location = response.headers.get("Location")
                if response.status not in _REDIRECTS or location is None:
                    return await self._read(response)
                url = _redirected(url, location)
        raise MediaFetchFailed(f"more than {self._config.max_redirects} redirects")

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        status = response.status
        if status in _TRANSIENT or status >= 500:
            raise _Transient(f"the source answered HTTP {status}")
        if not 200 <= status < 300:
            raise MediaFetchFailed(f"the source answered HTTP {status}")
        if (response.content_length or 0) > self._config.max_source_bytes:
            raise self._too_large()
        chunks: list[bytes] = []
        num_bytes = 0
        async for chunk in _decoded(response):
            num_bytes += len(chunk)
            if num_bytes > self._config.max_source_bytes:
                raise self._too_large()
            chunks.append(chunk)
        return b"".join(chunks)

    def _too_large(self) -> MediaLimitExceeded:
        return MediaLimitExceeded(f"the source has more than {self._config.max_source_bytes} bytes")

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                resolver=CheckedResolver(self._policy, self._lookup),
                socket_factory=self._policy.open_socket,
                limit=0,
                use_dns_cache=False,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                headers=_HEADERS,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._config.connect_seconds),
                auto_decompress=False,
                trust_env=False,
            )
        return self._session


def _url(text: str) -> URL:
    """Exactly as written: requoting would change what a signature in the URL covers."""
    return URL(text, encoded=text.isascii())


def _redirected(url: URL, location: str) -> URL:
    if "\\" in location:
        raise MediaSourceRefused("the source redirects to a malformed URL")
    target = url.join(_url(location))
    parse_source(str(target))
    return target


async def _decoded(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The body without its content encoding, in pieces that are bounded however well it was compressed."""
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
            yield chunk
        return
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise MediaFetchFailed(f"the source uses the content encoding {encoding[:20]}, which is not accepted")
    inflater = zlib.decompressobj(_ZLIB_OR_GZIP)
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        compressed = chunk
        while compressed:
            try:
                yield inflater.decompress(compressed, _INFLATE_BYTES)
            except zlib.error as error:
                raise MediaFetchFailed("the source's compression is damaged") from error
            compressed = inflater.unconsumed_tail
            await asyncio.sleep(0)
    if not inflater.eof:
        raise _Transient("the connection broke before the last byte")
