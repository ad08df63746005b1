"""Which hosts and addresses may be dialled for media. Checks URLs before, and every address at, dialling."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Sequence

from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from triptych.config import FetchConfig
from triptych.errors import ConfigError, MediaSourceRefused

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
"""Host name and port → addresses as text."""

AddrInfo = tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[object, ...]]
"""One entry of `socket.getaddrinfo`."""

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_V4_COMPATIBLE = ipaddress.IPv6Network("::/96")
_NOT_GLOBAL = (ipaddress.IPv6Network("64:ff9b:1::/48"), ipaddress.IPv6Network("fec0::/10"))
"""Local NAT64 and site-local, which some versions of `ipaddress` call global."""

_HOST = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+(%[a-z0-9]+)?")
_CANONICAL_V4 = re.compile(r"\d{1,3}(\.\d{1,3}){3}")
_NUMERIC_LABEL = re.compile(r"\d+|0x[0-9a-f]*")


class BlockedAddress(OSError):
    """An address that may not be dialled. An OSError, so that a dialler goes on to the next address."""


class AddressPolicy:
    """Decides from `FetchConfig.allowed_hosts` and `.allowed_networks`. Immutable.

    Raises:
        ConfigError: a network is not in CIDR form.
    """

    def __init__(self, config: FetchConfig) -> None:
        self._hosts = frozenset(_plain_host(host) for host in config.allowed_hosts)
        try:
            self._networks = tuple(ipaddress.ip_network(network) for network in config.allowed_networks)
        except ValueError as error:
            raise ConfigError(f"allowed_networks: {error}") from error

    def check_url(self, url: URL) -> None:
        """Refuse what can be refused without looking anything up.

        Raises:
            MediaSourceRefused: scheme, credentials, host or literal address are not allowed.
        """
        if url.scheme not in ("http", "https"):
            raise MediaSourceRefused(f"the scheme {url.scheme[:20]}: is not accepted here")
        if url.raw_user is not None or url.raw_password is not None:
            raise MediaSourceRefused("credentials in a URL are not accepted")
        if not url.raw_host:
            raise MediaSourceRefused("the URL names no host")
        host = _plain_host(url.raw_host)
        if not _HOST.fullmatch(host):
            raise MediaSourceRefused("the URL's host is malformed")
        if self._hosts and host not in self._hosts:
            raise MediaSourceRefused("the URL's host is not among those allowed")
        if (literal := _literal_address(host)) is not None and not self.allows(literal):
            raise blocked()

    def allows(self, address: Address) -> bool:
        """Whether this very address may be dialled."""
        if any(address.version == network.version and address in network for network in self._networks):
            return True
        if isinstance(address, ipaddress.IPv6Address) and (inner := _embedded(address)) is not None:
            return self.allows(inner)
        if any(address in network for network in _NOT_GLOBAL):
            return False
        return address.is_global and not address.is_multicast  # multicast counts as global

    def open_socket(self, info: AddrInfo) -> socket.socket:
        """Socket factory of the connector: the last look at an address, the one that is dialled.

        Raises:
            BlockedAddress: it may not be dialled.
        """
        family, kind, protocol, _, address = info
        if not self.allows(ipaddress.ip_address(str(address[0]))):
            raise BlockedAddress("blocked address")
        return socket.socket(family=family, type=kind, proto=protocol)


class CheckedResolver(AbstractResolver):
    """Looks host names up and keeps the addresses that may be dialled."""

    def __init__(self, policy: AddressPolicy, lookup: Lookup) -> None:
        self._policy = policy
        self._lookup = lookup

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """
        Raises:
            MediaSourceRefused: none of the host's addresses may be dialled.
            OSError: the host is not known.
        """
        found = [ipaddress.ip_address(text) for text in await self._lookup(host, port)]
        kept = [address for address in found if self._policy.allows(address)]
        if not kept:
            raise blocked()
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in kept
        ]

    async def close(self) -> None:
        """Holds nothing."""


def blocked() -> MediaSourceRefused:
    return MediaSourceRefused("blocked address: the URL leads to an address that may not be dialled")


def _plain_host(host: str) -> str:
    return host.rstrip(".").lower()


def _literal_address(host: str) -> Address | None:
    """The address that a host spells out, or None for a name.

    0x7f000001, 2130706433, 127.1 and 0177.0.0.1 are addresses to some resolvers and names to others: refused.
    """
    if host == "localhost" or host.endswith(".localhost"):
        return ipaddress.IPv4Address("127.0.0.1")
    last = host.rsplit(".", 1)[-1]
    if ":" not in host and not _NUMERIC_LABEL.fullmatch(last):
        return None
    if ":" not in host and not _CANONICAL_V4.fullmatch(host):
        raise blocked()
    try:
        return ipaddress.ip_address(host)
    except ValueError as error:
        raise blocked() from error


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that packets to this IPv6 address may end up at."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64 or (address in _V4_COMPATIBLE and int(address) > 1):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None
