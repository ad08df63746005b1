"""Where a media item's bytes come from: a source string, taken apart but not yet opened."""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from triptych.errors import MediaLimitExceeded, MediaSourceRefused

ACCEPTED = "accepted are data:, https:, http: and, where the server allows it, file: URLs"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_BASE64_MARK = re.compile(r"; *base64$", re.IGNORECASE)
_ASCII_WHITESPACE = b"\t\n\f\r "
_CONTROLS_AND_SPACE = "".join(map(chr, range(0x21)))
_PIECE_CHARACTERS = 256 * 1024
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
    text = source.strip(_CONTROLS_AND_SPACE)
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


def is_data_url(source: str) -> bool:
    """Cheap however long the source is."""
    return source[:64].lstrip(_CONTROLS_AND_SPACE)[:5].lower() == "data:"


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
    # In pieces: the codec holds the interpreter lock, and everything else would wait for a whole video.
    decoded = bytearray()
    left = b""
    for piece in _pieces(source.body):
        left += piece.translate(None, _ASCII_WHITESPACE)
        num_ready = (len(left) - 1) // 4 * 4  # keeps one group, which may be the padded last one
        if num_ready > 0:
            decoded += _strict_base64(left[:num_ready], may_be_padded=False)
            left = left[num_ready:]
        if len(decoded) > max_bytes:
            raise _too_large(max_bytes)
    decoded += _last_base64(left)
    return _within(bytes(decoded), max_bytes)


def _pieces(body: str) -> Iterator[bytes]:
    if "%" in body:
        yield unquote_to_bytes(body)
        return
    for start in range(0, len(body), _PIECE_CHARACTERS):
        try:
            yield body[start : start + _PIECE_CHARACTERS].encode("ascii")
        except UnicodeEncodeError as error:
            raise _damaged() from error


def _last_base64(encoded: bytes) -> bytes:
    """The last group: up to four characters, or fewer if the padding is missing."""
    if len(encoded) < 4:
        if b"=" in encoded or len(encoded) == 1:
            raise MediaSourceRefused("the base64 of the data URL is cut short or has wrong padding")
        encoded += b"=" * (-len(encoded) % 4)
    return _strict_base64(encoded, may_be_padded=True)


def _strict_base64(encoded: bytes, may_be_padded: bool) -> bytes:
    if not may_be_padded and b"=" in encoded:
        raise _damaged()
    try:
        return binascii.a2b_base64(encoded, strict_mode=True)
    except binascii.Error as error:
        raise _damaged() from error


def _damaged() -> MediaSourceRefused:
    return MediaSourceRefused("the data URL contains characters that are not base64")


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
