from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.media.make_server import always, answer, serve, until
from triptych.config import FetchConfig
from triptych.errors import (
    DeadlineExceeded,
    MediaFetchFailed,
    MediaLimitExceeded,
    MediaSourceRefused,
    TriptychError,
    WorkerUnavailable,
)
from triptych.media.fetch import Fetcher

BODY = bytes(range(256)) * 16


async def loopback(host: str, port: int) -> Sequence[str]:
    return ["127.0.0.1"]


def config(file_root: Path | None = None, max_source_bytes: int = 1024 * 1024) -> FetchConfig:
    return FetchConfig(
        allowed_networks=("127.0.0.1/32",),
        file_root=file_root,
        max_source_bytes=max_source_bytes,
        backoff_seconds=0.001,
    )


def fetch(source: str, settings: FetchConfig | None = None) -> bytes:
    async def run() -> bytes:
        fetcher = Fetcher(settings or config(), loopback)
        try:
            return await fetcher.fetch(source, 10)
        finally:
            await fetcher.close()

    return asyncio.run(run())


def refusal(source: str, settings: FetchConfig) -> TriptychError:
    with pytest.raises(TriptychError) as caught:
        fetch(source, settings)
    return caught.value


@pytest.mark.parametrize("size_bytes", [10, 200_000])
def test_data_url_is_decoded(size_bytes: int) -> None:
    payload = os.urandom(size_bytes)
    assert fetch("data:image/png;base64," + base64.b64encode(payload).decode()) == payload


def test_large_data_url_is_refused() -> None:
    error = refusal("data:;base64," + "A" * 4000, config(max_source_bytes=1000))
    assert isinstance(error, MediaLimitExceeded)


def test_file_below_the_root_is_read(tmp_path: Path) -> None:
    (tmp_path / "a b.png").write_bytes(BODY)
    assert fetch(f"file://{tmp_path}/a%20b.png", config(tmp_path)) == BODY


def test_link_within_the_root_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real.png").write_bytes(BODY)
    (tmp_path / "link.png").symlink_to("real.png")
    assert fetch(f"file://{tmp_path}/link.png", config(tmp_path)) == BODY


def test_files_are_refused_without_a_root(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(BODY)
    error = refusal(f"file://{tmp_path}/x.png", config())
    assert isinstance(error, MediaSourceRefused)
    assert "allowed local media path" in str(error)


@pytest.mark.parametrize(
    "path", ["../secret.png", "%2e%2e/secret.png", "..%2fsecret.png", "link.png", "dir/secret.png"]
)
def test_paths_that_leave_the_root_are_refused(tmp_path: Path, path: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret.png").write_bytes(BODY)
    (root / "link.png").symlink_to(tmp_path / "secret.png")
    (root / "dir").symlink_to(tmp_path)
    error = refusal(f"file://{root}/{path}", config(root))
    assert isinstance(error, MediaSourceRefused)
    assert "must be a subpath" in str(error)


def test_directory_with_the_roots_name_as_prefix_is_outside(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "rootless").mkdir()
    (tmp_path / "rootless" / "x.png").write_bytes(BODY)
    error = refusal(f"file://{tmp_path}/rootless/x.png", config(tmp_path / "root"))
    assert isinstance(error, MediaSourceRefused)


def test_missing_files_directories_and_pipes_are_failures(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing.png", "", "pipe"):
        assert isinstance(refusal(f"file://{tmp_path}/{name}", config(tmp_path)), MediaFetchFailed)


def test_large_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(BODY)
    error = refusal(f"file://{tmp_path}/x", config(tmp_path, max_source_bytes=100))
    assert isinstance(error, MediaLimitExceeded)


def test_one_source_is_fetched_once_at_a_time() -> None:
    release = asyncio.Event()

    async def held(path: str, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(answer(200, BODY))
        await writer.drain()

    async def run() -> None:
        async with serve(held) as server:
            fetcher = Fetcher(config(), loopback)
            tasks = [asyncio.create_task(fetcher.fetch(server.url("/x"), 10)) for _ in range(8)]
            await until(lambda: len(server.paths) == 1)
            tasks[0].cancel()
            release.set()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(results[0], asyncio.CancelledError)
            assert results[1:] == [BODY] * 7
            assert server.paths == ["/x"]
            await fetcher.close()

    asyncio.run(run())


def test_many_requests_with_shared_sources_all_succeed() -> None:
    async def run() -> None:
        async with serve(always(answer(200, BODY))) as server:
            fetcher = Fetcher(config(), loopback)
            slots = asyncio.Semaphore(32)

            async def request(number: int) -> int:
                async with slots:
                    urls = [server.url(f"/{i}") for i in range(11)] + [server.url(f"/own/{number}")]
                    return len(await asyncio.gather(*(fetcher.fetch(url, 30) for url in urls)))

            assert await asyncio.gather(*(request(number) for number in range(50))) == [12] * 50
            assert len(server.paths) < 50 * 12
            await fetcher.close()

    asyncio.run(run())


async def silent(path: str, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


def test_deadline_ends_one_waiter_and_not_the_other() -> None:
    async def run() -> None:
        async with serve(silent) as server:
            fetcher = Fetcher(config(), loopback)
            patient = asyncio.create_task(fetcher.fetch(server.url("/x"), 10))
            await until(lambda: len(server.paths) == 1)
            with pytest.raises(DeadlineExceeded):
                await fetcher.fetch(server.url("/x"), 0.01)
            assert not patient.done()
            assert server.num_open == 1
            patient.cancel()
            await asyncio.gather(patient, return_exceptions=True)
            await until(lambda: server.num_open == 0)
            await fetcher.close()

    asyncio.run(run())


def test_close_ends_what_is_under_way() -> None:
    async def run() -> None:
        async with serve(silent) as server:
            fetcher = Fetcher(config(), loopback)
            task = asyncio.create_task(fetcher.fetch(server.url("/x"), 10))
            await until(lambda: len(server.paths) == 1)
            await fetcher.close()
            with pytest.raises(WorkerUnavailable):
                await task
            await until(lambda: server.num_open == 0)
            await fetcher.close()

    asyncio.run(run())


def test_fetching_needs_neither_torch_nor_decoders() -> None:
    heavy = "{'torch', 'transformers', 'torchvision', 'PIL', 'av', 'numpy'}"
    program = f"import sys, triptych.media.fetch; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.strip() == "[]"
