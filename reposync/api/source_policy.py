"""Which sources may be registered over HTTP: those that whoever calls could reach without this server's help.

The daemon has its machine's files and its place in the network, and a caller must not borrow them. What the operator
wrote into the registry file, the GitLab servers with their tokens among it, is the operator's choice.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from urllib.parse import urlsplit

from reposync.config.registry import ResolvedRepository
from reposync.errors import SourceNotAllowed

RESOLVE_SECONDS = 5.0
_REMEDY = "The operator can allow it (`http: {allow_local_sources: true}`), or register it in the registry file."
# RFC 6052: an IPv4 address behind a translator, which reaches what that one reaches.
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


async def check_source(repository: ResolvedRepository, *, allow_local: bool) -> None:
    """Raises SourceNotAllowed for a folder, and for an address whose host is not, or not only, in the public internet.

    The name is resolved now. One that leads elsewhere later is not noticed: where callers are not trusted at all, the
    network has to keep the daemon from what is none of its business.
    """
    if allow_local or repository.gitlab is not None:
        return
    if repository.git_url is None:
        raise SourceNotAllowed("A folder of the server cannot be registered over HTTP.", remedy=_REMEDY)
    split = urlsplit(repository.git_url)
    host = split.hostname or ""
    for address in await _addresses(host, split.port or 443):
        if not is_public(address):
            raise SourceNotAllowed(
                f"{host} is not in the public internet, and cannot be registered over HTTP.", remedy=_REMEDY
            )


def is_public(address: IpAddress) -> bool:
    """Whether it is one that everybody in the internet could reach: not loopback, private, link-local (where clouds
    have their metadata), shared, multicast or reserved, and no other way to write one of these."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not address.is_multicast and not address.is_reserved


async def _addresses(host: str, port: int) -> list[IpAddress]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [ipaddress.ip_address(each[4][0]) for each in found]
    except (OSError, ValueError):
        # OSError: nobody knows the name, or not in time; ValueError: it cannot be a name.
        raise SourceNotAllowed(
            f"{host[:255]} cannot be resolved, so that nobody knows whether it is in the public internet.",
            remedy="Check its name. " + _REMEDY,
        ) from None
