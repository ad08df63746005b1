"""Where a media item's bytes come from: a source string, taken apart but not yet opened."""

from __future__ import annotations

import binascii
import re
from dataclasses import dataclass
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from triptych.errors import MediaLimitExceeded, MediaSourceRefused

ACCEPTED = "accepted are data:, https:, http: and, where the server allows it, file: URLs"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_BASE64_MARK = re.compile(r"; *base64$", re.IGNORECASE)
_ASCII_WHITESPACE = b"\t\n\f\r "
_FRAME_LIST_TYPE = "video/jpeg"


@dataclass(frozen=True, slots=True)
class DataSource:
    """A data URL. `media_type` is what it claims ("" if nothing); decoders go by the bytes instead."""

    media_type: str
    body: str
    is_base64: bool


@dataclass(frozen=True, slots=True)
class HttpSource:
    url: str


@dataclass(frozen=True, slots=True)
class FileSource:
    """`path` is absolute and percent-decoded, but may still contain ".." or lead through symlinks."""

    path: str


Source = DataSource | HttpSource | FileSource


def parse_source(source: str) -> Source:
    """Tell what kind of source a string is.

    Raises:
        MediaSourceRefused: it is no URL, has another scheme, or is malformed.
    """
    text = source.strip("".join(map(chr, range(0x21))))
    match = _SCHEME.match(text)
    if match is None:
        raise MediaSourceRefused(f"the media source is not a URL; {ACCEPTED}")
    scheme = match[1].lower()
    if scheme == "data":
        return _parse_data(text, match.end())
    if scheme in ("http", "https"):
        return _parse_http(text)
    if scheme == "file":
        return _parse_file(text)
    raise MediaSourceRefused(f"the scheme {scheme[:20]}: is not accepted; {ACCEPTED}")


def decode_data(source: DataSource, max_bytes: int) -> bytes:
    """The bytes of a data URL.

    Base64 is read as browsers read it (WHATWG forgiving-base64): ASCII whitespace is dropped, padding may be
    missing, anything else outside the alphabet is an error.

    Raises:
        MediaSourceRefused: the base64 is damaged.
        MediaLimitExceeded: more than `max_bytes`.
    """
    if not source.is_base64:
        return _within(unquote_to_bytes(source.body), max_bytes)
    encoded = unquote_to_bytes(source.body) if "%" in source.body else _ascii(source.body)
    encoded = encoded.translate(None, _ASCII_WHITESPACE)
    if len(encoded) // 4 * 3 - 2 > max_bytes:
        raise _too_large(max_bytes)
    return _within(_forgiving_base64(encoded), max_bytes)


def _forgiving_base64(encoded: bytes) -> bytes:
    if len(encoded) % 4 == 0:
        if encoded.endswith(b"=="):
            encoded = encoded[:-2]
        elif encoded.endswith(b"="):
            encoded = encoded[:-1]
    if len(encoded) % 4 == 1 or encoded.endswith(b"="):
        raise MediaSourceRefused("the base64 of the data URL is cut short or has wrong padding")
    try:
        return binascii.a2b_base64(encoded + b"=" * (-len(encoded) % 4), strict_mode=True)
    except binascii.Error as error:
        raise MediaSourceRefused("the data URL contains characters that are not base64") from error


def _ascii(body: str) -> bytes:
    try:
        return body.encode("ascii")
    except UnicodeEncodeError as error:
        raise MediaSourceRefused("the data URL contains characters that are not base64") from error


def _within(data: bytes, max_bytes: int) -> bytes:
    if len(data) > max_bytes:
        raise _too_large(max_bytes)
    return data


def _too_large(max_bytes: int) -> MediaLimitExceeded:
    return MediaLimitExceeded(f"the data URL holds more than {max_bytes} bytes")


def _parse_data(text: str, start: int) -> DataSource:
    comma = text.find(",", start)
    if comma < 0:
        raise MediaSourceRefused("the data URL is missing ',' between its type and its data")
    header = re.sub(r"[\t\r\n]", "", text[start:comma]).strip()
    mark = _BASE64_MARK.search(header)
    media_type = header.split(";", 1)[0].strip().lower()
    if media_type == _FRAME_LIST_TYPE:
        raise MediaSourceRefused("lists of frames (video/jpeg) are not accepted; send a video file")
    end = text.find("#", comma)
    return DataSource(media_type, text[comma + 1 : end if end >= 0 else None], mark is not None)


def _parse_http(text: str) -> HttpSource:
    """Refuses what URL parsers disagree about: the check must see the host that is dialled."""
    if not re.match(r"https?://[^/]", text, re.IGNORECASE):
        raise MediaSourceRefused("the URL is malformed: '//' and a host must follow the scheme")
    if "\\" in text:
        raise MediaSourceRefused("the URL is malformed: it contains a backslash")
    if re.search(r"[\x00-\x20\x7f]", text):
        raise MediaSourceRefused("the URL is malformed: it contains a space or control character")
    return HttpSource(text)


def _parse_file(text: str) -> FileSource:
    parts = urlsplit(text)
    if not text[5:].startswith("//") or parts.netloc.lower() not in ("", "localhost"):
        raise MediaSourceRefused("a file URL has the form file:///absolute/path")
    if parts.query:
        raise MediaSourceRefused("a file URL has no query; write '?' in a file name as %3F")
    path = unquote(parts.path)
    if "\0" in path or not path.startswith("/"):
        raise MediaSourceRefused("a file URL has the form file:///absolute/path")
    return FileSource(path)
