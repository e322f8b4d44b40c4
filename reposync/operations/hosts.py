"""Which sources clients may register over HTTP."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from urllib.parse import urlsplit

from reposync.config.registry import ResolvedRepository
from reposync.errors import SourceNotAllowed

RESOLVE_SECONDS = 5.0
_REMEDY = "The operator can allow it (`http: {allow_local_sources: true}`), or register it in the registry file."
# RFC 6052: an IPv4 address behind a translator.
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


async def check_source(repository: ResolvedRepository, *, allow_local: bool) -> None:
    """Raises SourceNotAllowed for a folder, and for a host that is not, or not only, in the public internet: clients
    must not use the daemon's files or its position in the network. The GitLab servers of the registry file, and their
    tokens, are the operator's choice.

    The name is resolved now; a later change of it is not noticed. If clients are not trusted at all, the network must
    keep the daemon from internal addresses.
    """
    if allow_local or repository.gitlab is not None:
        return
    if repository.git is None:
        raise SourceNotAllowed("A folder of the server cannot be registered over HTTP.", remedy=_REMEDY)
    split = urlsplit(repository.git)
    host = split.hostname or ""
    for address in await _addresses(host, split.port or 443):
        if not is_public(address):
            raise SourceNotAllowed(
                f"{host} is not in the public internet, and cannot be registered over HTTP.", remedy=_REMEDY
            )


def is_public(address: IpAddress) -> bool:
    """Whether everybody in the internet can reach it: not loopback, private, link-local (the metadata of clouds),
    shared, multicast or reserved, nor a different notation of one of these."""
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
        # OSError: an unknown name, or a timeout; ValueError: not a valid name.
        raise SourceNotAllowed(
            f"{host[:255]} cannot be resolved, so it is unknown whether it is in the public internet.",
            remedy="Check its name. " + _REMEDY,
        ) from None
