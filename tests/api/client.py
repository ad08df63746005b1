"""Plain HTTP from tests."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.api.serving import WAIT_SECONDS

CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Answered:
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode()

    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def error(self) -> dict[str, str | None]:
        return self.json()["error"]


def post(
    url: str, content: bytes | Iterable[bytes], headers: Mapping[str, str] | None = None, path: str = CHAT
) -> Answered:
    return _request("POST", url, path, content, headers or {})


def get(url: str, path: str) -> Answered:
    return _request("GET", url, path, None, {})


def _request(
    method: str, url: str, path: str, content: bytes | Iterable[bytes] | None, headers: Mapping[str, str]
) -> Answered:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=WAIT_SECONDS)
    with closing(connection):
        connection.request(method, path, content, dict(headers))
        response = connection.getresponse()
        lowered = {name.lower(): value for name, value in response.getheaders()}
        return Answered(response.status, lowered, response.read())


def connect_and_send(url: str, content: bytes) -> socket.socket:
    """A chat request on a socket of our own, to be closed when the test likes."""
    address = urlsplit(url)
    connection = socket.create_connection((address.hostname or "", address.port or 0), WAIT_SECONDS)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection
