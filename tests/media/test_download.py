from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.media.make_server import Respond, Server, always, answer, by_path, head, in_turn, serve, until
from triptych.config import FetchConfig
from triptych.errors import MediaFetchFailed, MediaLimitExceeded, MediaSourceRefused
from triptych.media.download import Downloader, system_lookup

BODY = bytes(range(256)) * 64
CONFIG = FetchConfig(
    allowed_networks=("127.0.0.1/32",), max_source_bytes=1024 * 1024, total_seconds=5, backoff_seconds=0.001
)


async def loopback(host: str, port: int) -> Sequence[str]:
    return ["127.0.0.1"]


async def download(url: str, config: FetchConfig = CONFIG) -> bytes:
    downloader = Downloader(config, loopback)
    try:
        return await downloader.download(url)
    finally:
        await downloader.close()


def downloaded(respond: Respond, config: FetchConfig = CONFIG, path: str = "/x") -> tuple[bytes, Server]:
    async def run() -> tuple[bytes, Server]:
        async with serve(respond) as server:
            return await download(server.url(path), config), server

    return asyncio.run(run())


def failure(respond: Respond, config: FetchConfig = CONFIG, path: str = "/x") -> tuple[Exception, Server]:
    async def run() -> tuple[Exception, Server]:
        async with serve(respond) as server:
            with pytest.raises((MediaFetchFailed, MediaSourceRefused, MediaLimitExceeded)) as caught:
                await download(server.url(path), config)
            await until(lambda: server.num_open == 0)
            return caught.value, server

    return asyncio.run(run())


def test_body_arrives_whole() -> None:
    data, server = downloaded(always(answer(200, BODY)), path="/a%20b?c=%2F")
    assert data == BODY
    assert server.paths == ["/a%20b?c=%2F"]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 302])
def test_permanent_failures_are_reported_after_one_request(status: int) -> None:
    error, server = failure(always(answer(status, b"secret text")))
    assert isinstance(error, MediaFetchFailed)
    assert f"HTTP {status}" in str(error)
    assert "secret" not in str(error)
    assert len(server.paths) == 1


def test_transient_failures_are_retried_until_success() -> None:
    data, server = downloaded(in_turn([answer(500), answer(503), answer(200, BODY)]))
    assert data == BODY
    assert len(server.paths) == 3


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_transient_failures_give_up_after_three_tries(status: int) -> None:
    error, server = failure(always(answer(status)))
    assert isinstance(error, MediaFetchFailed)
    assert f"HTTP {status}" in str(error)
    assert len(server.paths) == 3


def test_short_body_is_retried_and_never_delivered() -> None:
    short = head(200, {"Content-Length": "1000"}) + b"x" * 400
    data, server = downloaded(in_turn([short, answer(200, BODY)]))
    assert data == BODY
    assert len(server.paths) == 2
    error, server = failure(always(short))
    assert isinstance(error, MediaFetchFailed)
    assert len(server.paths) == 3


def test_server_that_hangs_up_is_retried() -> None:
    data, _ = downloaded(in_turn([b"", answer(200, BODY)]))
    assert data == BODY


def test_server_that_speaks_no_http_is_a_failure() -> None:
    error, _ = failure(always(b"SSH-2.0-OpenSSH_9.0\r\n\r\n"))
    assert isinstance(error, MediaFetchFailed)


def test_declared_size_above_the_limit_is_refused_before_the_body() -> None:
    error, server = failure(always(head(200, {"Content-Length": str(2 * 1024 * 1024)})))
    assert isinstance(error, MediaLimitExceeded)
    assert len(server.paths) == 1


def test_undeclared_size_above_the_limit_is_refused_while_streaming() -> None:
    async def endless(path: str, writer: asyncio.StreamWriter) -> None:
        writer.write(head(200, {"Connection": "close"}))
        while True:
            writer.write(bytes(64 * 1024))
            await writer.drain()

    error, _ = failure(endless)
    assert isinstance(error, MediaLimitExceeded)


@pytest.mark.parametrize(
    ("encoding", "body"), [("gzip", gzip.compress(BODY)), ("deflate", zlib.compress(BODY))]
)
def test_compressed_body_is_decompressed(encoding: str, body: bytes) -> None:
    assert downloaded(always(answer(200, body, Content_Encoding=encoding)))[0] == BODY


def test_decompressed_size_above_the_limit_is_refused() -> None:
    bomb = gzip.compress(bytes(64 * 1024 * 1024))
    assert len(bomb) < 100_000
    error, _ = failure(always(answer(200, bomb, Content_Encoding="gzip")))
    assert isinstance(error, MediaLimitExceeded)


@pytest.mark.parametrize(
    ("encoding", "body"), [("br", BODY), ("gzip", b"no gzip at all"), ("gzip", gzip.compress(BODY)[:-20])]
)
def test_damaged_or_unknown_compression_is_a_failure(encoding: str, body: bytes) -> None:
    assert isinstance(failure(always(answer(200, body, Content_Encoding=encoding)))[0], MediaFetchFailed)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed(status: int) -> None:
    replies = {"/x": answer(status, Location="/y?z"), "/y?z": answer(200, BODY)}
    data, server = downloaded(by_path(replies))
    assert data == BODY
    assert server.paths == ["/x", "/y?z"]


def test_redirects_are_bounded() -> None:
    error, server = failure(always(answer(302, Location="/x")))
    assert "redirects" in str(error)
    assert len(server.paths) == CONFIG.max_redirects + 1


@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://10.0.0.1/",
        "http://[::1]/",
        "http://2130706433/",
        "http://user:pw@127.0.0.1/",
        "file:///etc/passwd",
        "data:image/png;base64,AAAA",
        "ftp://127.0.0.1/x",
        "http://127.0.0.1\\@example.com/",
    ],
)
def test_redirect_to_what_may_not_be_opened_is_refused(location: str) -> None:
    error, server = failure(always(answer(302, Location=location)))
    assert isinstance(error, MediaSourceRefused)
    assert len(server.paths) == 1


def test_redirect_target_on_a_blocked_address_sees_no_connection() -> None:
    async def run() -> None:
        async with serve(always(answer(200, BODY)), "127.0.0.2") as inner:
            async with serve(always(answer(302, Location=inner.url("/secret")))) as outer:
                with pytest.raises(MediaSourceRefused, match="blocked address"):
                    await download(outer.url("/x"))
            assert inner.num_connections == 0

    asyncio.run(run())


def test_redirect_to_a_host_outside_the_list_is_refused() -> None:
    config = replace(CONFIG, allowed_hosts=("allowed.test",))

    async def run() -> None:
        async with serve(always(answer(200, BODY))) as inner:
            async with serve(always(answer(302, Location=inner.url("/secret")))) as outer:
                with pytest.raises(MediaSourceRefused, match="not among those allowed"):
                    await download(outer.url("/x", "allowed.test"), config)
                assert outer.paths == ["/x"]
            assert inner.num_connections == 0

    asyncio.run(run())


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "localhost.", "0x7f000001", "2130706433", "127.1"]
)
def test_loopback_sees_no_connection_by_default(host: str) -> None:
    async def run() -> None:
        async with serve(always(answer(200, BODY))) as server:
            downloader = Downloader(FetchConfig(), system_lookup)
            with pytest.raises(MediaSourceRefused, match="blocked address"):
                await downloader.download(server.url("/x", host))
            await downloader.close()
            assert server.num_connections == 0

    asyncio.run(run())


def test_host_that_changes_its_address_after_the_first_look_is_blocked() -> None:
    answers = iter([["127.0.0.1"], ["127.0.0.2"]])

    async def rebinding(host: str, port: int) -> Sequence[str]:
        return next(answers)

    async def run() -> None:
        async with serve(always(answer(503))) as server:
            downloader = Downloader(CONFIG, rebinding)
            with pytest.raises(MediaSourceRefused, match="blocked address"):
                await downloader.download(server.url("/x", "rebind.test"))
            await downloader.close()
            assert len(server.paths) == 1

    asyncio.run(run())


def test_unknown_host_is_a_failure() -> None:
    async def unknown(host: str, port: int) -> Sequence[str]:
        raise OSError("no such host")

    async def run() -> None:
        downloader = Downloader(CONFIG, unknown)
        with pytest.raises(MediaFetchFailed, match="cannot be reached"):
            await downloader.download("http://nowhere.test/x")
        await downloader.close()

    asyncio.run(run())


async def silent(path: str, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def dripping(path: str, writer: asyncio.StreamWriter) -> None:
    writer.write(head(200, {"Content-Length": "1000"}))
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("respond", [silent, dripping])
def test_slow_source_times_out_and_leaves_no_connection(respond: Respond) -> None:
    error, server = failure(respond, replace(CONFIG, total_seconds=0.1))
    assert isinstance(error, MediaFetchFailed)
    assert "timed out" in str(error)
    assert len(server.paths) == 3


def test_cancelled_download_closes_its_connection() -> None:
    async def run() -> None:
        async with serve(silent) as server:
            downloader = Downloader(CONFIG, loopback)
            task = asyncio.create_task(downloader.download(server.url("/x")))
            await until(lambda: len(server.paths) == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: server.num_open == 0)
            await downloader.close()
            await downloader.close()

    asyncio.run(run())


def test_concurrent_downloads_are_bounded() -> None:
    async def run() -> None:
        async with serve(silent) as server:
            downloader = Downloader(replace(CONFIG, max_concurrent=2), loopback)
            tasks = [asyncio.create_task(downloader.download(server.url(f"/{i}"))) for i in range(4)]
            await until(lambda: len(server.paths) == 2)
            assert server.num_open == 2
            tasks[0].cancel()
            await until(lambda: len(server.paths) == 3)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await downloader.close()

    asyncio.run(run())
