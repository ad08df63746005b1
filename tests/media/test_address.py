from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence

import pytest
from yarl import URL

from triptych.config import FetchConfig
from triptych.errors import ConfigError, MediaSourceRefused
from triptych.media.address import AddressPolicy, BlockedAddress, CheckedResolver

PUBLIC_ONLY = AddressPolicy(FetchConfig())

PRIVATE = [
    "127.0.0.1",
    "127.255.0.9",
    "0.0.0.0",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "192.0.0.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "2002:7f00:1::",
    "fe80::1",
    "fec0::1",
    "fc00::1",
    "ff02::1",
    "2001:db8::1",
]
PUBLIC = ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_that_are_not_public_are_blocked(address: str) -> None:
    assert not PUBLIC_ONLY.allows(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed(address: str) -> None:
    assert PUBLIC_ONLY.allows(ipaddress.ip_address(address))


def test_allowed_networks_open_what_they_cover_only() -> None:
    policy = AddressPolicy(FetchConfig(allowed_networks=("10.0.0.0/8", "::1/128")))
    for address in ("10.9.9.9", "::1", "::ffff:10.9.9.9"):
        assert policy.allows(ipaddress.ip_address(address))
    for address in ("127.0.0.1", "192.168.0.1", "::ffff:127.0.0.1"):
        assert not policy.allows(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1.",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[fe80::1%25eth0]",
        "169.254.169.254",
        "0x7f000001",
        "0X7F.1",
        "2130706433",
        "127.1",
        "0177.0.0.1",
        "017700000001",
        "8.8.8.8.8",
        "300.1.1.1",
    ],
)
def test_urls_with_blocked_literal_addresses_are_refused(host: str) -> None:
    with pytest.raises(MediaSourceRefused, match="blocked address"):
        PUBLIC_ONLY.check_url(URL(f"http://{host}/x.png"))


@pytest.mark.parametrize("url", ["http://user@host/x", "http://user:secret@host/x", "http://:@127.0.0.1/x"])
def test_urls_with_credentials_are_refused(url: str) -> None:
    with pytest.raises(MediaSourceRefused):
        PUBLIC_ONLY.check_url(URL(url))


@pytest.mark.parametrize("url", ["ftp://host/x", "file:///etc/passwd", "/x", "data:,x"])
def test_other_schemes_are_refused(url: str) -> None:
    with pytest.raises(MediaSourceRefused):
        PUBLIC_ONLY.check_url(URL(url))


def test_host_list_admits_its_hosts_however_they_are_written() -> None:
    policy = AddressPolicy(FetchConfig(allowed_hosts=("Media.Example.com",)))
    for host in ("media.example.com", "MEDIA.example.COM", "media.example.com."):
        policy.check_url(URL(f"https://{host}/x.png"))
    for host in ("example.com", "evil-media.example.com", "media.example.com.evil.test", "8.8.8.8"):
        with pytest.raises(MediaSourceRefused, match="not among those allowed"):
            policy.check_url(URL(f"https://{host}/x.png"))


def test_network_that_is_none_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="allowed_networks"):
        AddressPolicy(FetchConfig(allowed_networks=("localhost",)))


def resolved(addresses: Sequence[str]) -> list[str]:
    async def lookup(host: str, port: int) -> Sequence[str]:
        return addresses

    found = asyncio.run(CheckedResolver(PUBLIC_ONLY, lookup).resolve("host", 80))
    return [entry["host"] for entry in found]


def test_resolver_keeps_only_addresses_that_may_be_dialled() -> None:
    assert resolved(["127.0.0.1", "8.8.8.8", "::1"]) == ["8.8.8.8"]


def test_host_without_an_allowed_address_is_refused() -> None:
    with pytest.raises(MediaSourceRefused, match="blocked address"):
        resolved(["127.0.0.1", "fe80::1%eth0"])


def test_no_socket_is_opened_for_a_blocked_address() -> None:
    with pytest.raises(BlockedAddress):
        PUBLIC_ONLY.open_socket((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 80)))
    PUBLIC_ONLY.open_socket((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("8.8.8.8", 80))).close()
