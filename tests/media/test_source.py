from __future__ import annotations

import base64
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.errors import MediaLimitExceeded, MediaSourceRefused
from triptych.media.source import DataSource, FileSource, HttpSource, decode_data, parse_source

PAYLOAD = bytes(range(256))
ENCODED = base64.b64encode(PAYLOAD).decode()
MANY = 1_000_000


def data_of(url: str, max_bytes: int = MANY) -> bytes:
    source = parse_source(url)
    assert isinstance(source, DataSource)
    return decode_data(source, max_bytes)


@pytest.mark.parametrize(
    ("url", "media_type"),
    [
        (f"data:image/png;base64,{ENCODED}", "image/png"),
        (f"data:image/png;charset=utf-8;name=a.png;base64,{ENCODED}", "image/png"),
        (f"data:;base64,{ENCODED}", ""),
        (f"DATA:image/PNG;BASE64,{ENCODED}", "image/png"),
        (f"data:image/png; base64,{ENCODED}", "image/png"),
        (f"  data:image/png;base64,{ENCODED}\n", "image/png"),
        (f"data:image/png;base64,{ENCODED}#fragment", "image/png"),
        (f"data:image/png;base64,{ENCODED.replace('+', '%2B').replace('/', '%2F')}", "image/png"),
    ],
)
def test_base64_data_urls_give_their_bytes(url: str, media_type: str) -> None:
    source = parse_source(url)
    assert isinstance(source, DataSource)
    assert source.media_type == media_type
    assert decode_data(source, MANY) == PAYLOAD


@pytest.mark.parametrize(
    ("body", "expected"),
    [("hello", b"hello"), ("%00%FFx%2c", b"\0\xffx,"), ("a,b", b"a,b"), ("%zz", b"%zz"), ("", b"")],
)
def test_data_urls_without_base64_are_percent_decoded(body: str, expected: bytes) -> None:
    assert data_of(f"data:text/plain,{body}") == expected


def test_base64_wrapped_in_lines_is_read() -> None:
    wrapped = base64.encodebytes(PAYLOAD).decode().replace("\n", "\r\n")
    assert data_of(f"data:image/png;base64,\n{wrapped}\n") == PAYLOAD


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 196_607, 196_608, 196_609, 500_000])
@pytest.mark.parametrize("line", [None, 76, 77])
def test_base64_of_every_size_is_read(size: int, line: int | None) -> None:
    payload = random.Random(size).randbytes(size)
    encoded = base64.b64encode(payload).decode()
    if line is not None:
        encoded = "\n".join(encoded[start : start + line] for start in range(0, len(encoded), line))
    assert data_of(f"data:;base64,{encoded}") == payload


@pytest.mark.parametrize("place", [262_144, 262_141, 300_000, 524_288])
def test_padding_within_long_base64_is_refused(place: int) -> None:
    body = "A" * (place - 2) + "==" + "A" * 300_000
    with pytest.raises(MediaSourceRefused, match="base64"):
        data_of(f"data:;base64,{body}")


@given(st.binary(max_size=100))
def test_base64_without_padding_is_read(payload: bytes) -> None:
    assert data_of("data:audio/wav;base64," + base64.b64encode(payload).decode().rstrip("=")) == payload


@pytest.mark.parametrize(
    "body",
    [
        ENCODED[:40] + "!!" + ENCODED[40:],
        "A",
        "AAAAA",
        "AA=",
        "A===",
        "=AAA",
        "AA=A",
        "AAAA====",
        "AÄAA",
        "-_AA",
    ],
)
def test_damaged_base64_is_refused(body: str) -> None:
    with pytest.raises(MediaSourceRefused, match="base64"):
        data_of(f"data:image/png;base64,{body}")


def test_data_url_without_comma_is_refused() -> None:
    with pytest.raises(MediaSourceRefused, match="missing ','"):
        parse_source("data:image/png;base64")


def test_data_url_above_the_limit_is_refused() -> None:
    for url in (f"data:;base64,{ENCODED}", "data:," + "x" * 256):
        assert len(data_of(url, 256)) == 256
        with pytest.raises(MediaLimitExceeded, match="255 bytes"):
            data_of(url, 255)


def test_list_of_jpeg_frames_is_refused_by_name() -> None:
    frames = ",".join(["/9j/"] * 1000)
    with pytest.raises(MediaSourceRefused, match="video/jpeg"):
        parse_source(f"data:video/jpeg;base64,{frames}")


@pytest.mark.parametrize(
    "source", ["", " ", ENCODED, "/etc/passwd", "./x.png", "x.png", "//host/x.png", "null"]
)
def test_what_is_no_url_is_refused_naming_accepted_schemes(source: str) -> None:
    with pytest.raises(MediaSourceRefused, match=r"not a URL.*data:, https:, http:"):
        parse_source(source)


@pytest.mark.parametrize(
    "source", ["ftp://host/x", "gopher://host", "s3://b/k", "javascript:1", "C:\\x.png", "blob:x"]
)
def test_other_schemes_are_refused_naming_accepted_ones(source: str) -> None:
    with pytest.raises(MediaSourceRefused, match=r"is not accepted.*data:, https:, http:"):
        parse_source(source)


@pytest.mark.parametrize("url", ["http://host/x.png", "HTTPS://host:8443/a%20b?c=d&e=/f", "http://[::1]/x"])
def test_http_urls_are_kept_as_they_are(url: str) -> None:
    assert parse_source(url) == HttpSource(url)


@pytest.mark.parametrize(
    "url",
    [
        "http:host/x",
        "http:/host/x",
        "http:///x",
        "http://",
        "http:\\\\host\\x",
        "http://127.0.0.1:80\\@allowed.test/x.png",
        "http://host/a b",
        "http://host\r\nHost: other/x",
        "http://ho\tst/x",
    ],
)
def test_http_urls_that_parsers_disagree_about_are_refused(url: str) -> None:
    with pytest.raises(MediaSourceRefused, match="malformed"):
        parse_source(url)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///a/b%20c.png", "/a/b c.png"),
        ("file://localhost/a/b.png", "/a/b.png"),
        ("file:///a/%2e%2e/b", "/a/../b"),
    ],
)
def test_file_urls_give_their_path(url: str, path: str) -> None:
    assert parse_source(url) == FileSource(path)


@pytest.mark.parametrize(
    "url", ["file:a.png", "file:/a.png", "file://host/a.png", "file://", "file:///a%00b", "file:///a?b"]
)
def test_malformed_file_urls_are_refused(url: str) -> None:
    with pytest.raises(MediaSourceRefused, match="file URL"):
        parse_source(url)
