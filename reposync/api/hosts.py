"""Hosts and addresses: which names the server accepts, which forwarded headers it trusts, and which sources may be
registered over HTTP."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from reposync.config.registry import ResolvedRepository
from reposync.config.sections import HttpConfig
from reposync.errors import SourceNotAllowed
from reposync.outgoing import is_loopback

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::(?P<port>[0-9]{1,5}))?")
_DEFAULT_PORTS = {"http": 80, "https": 443}

RESOLVE_SECONDS = 5.0
_REMEDY = "The operator can allow it (`http: {allow_local_sources: true}`), or register it in the registry file."
# RFC 6052: an IPv4 address behind a translator.
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

_ORIGINAL_HOST = "reposync.host"
"""Key of the request's scope for its own Host header, if `Proxies` has replaced it."""

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def split_host(value: str) -> tuple[str, int | None] | None:
    """Name (in lower case, IPv6 without brackets) and port of a Host header; None if it is not valid."""
    found = _HOST.fullmatch(value.strip())
    if found is None:
        return None
    name = found["name"].lower().removeprefix("[").removesuffix("]").removesuffix(".")
    return name, int(found["port"]) if found["port"] else None


def is_cross_site(headers: Headers) -> bool:
    """Whether a page of another origin made a browser send this. False if no browser sent it.

    Pages cannot set `Sec-Fetch-Site`, but browsers send it to https and loopback only; `Origin` is part of every POST.
    `same-site` counts as another site: it is a different port of this machine, or a sibling subdomain.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None or origin is None:
        return site not in (None, "same-origin", "none")
    host = split_host(headers.get("host", ""))
    try:
        split = urlsplit(origin)
        name, port = split.hostname, split.port or _DEFAULT_PORTS.get(split.scheme)
    except ValueError:
        return True
    return name is None or host is None or (name, port) != (host[0], host[1] or _DEFAULT_PORTS.get(split.scheme))


def original_host(scope: Scope) -> str:
    """The Host header as it arrived, whatever a proxy says that the browser has sent."""
    return str(scope.get(_ORIGINAL_HOST) or Headers(scope=scope).get("host", ""))


class AllowedHosts:
    """The host names that the server accepts, against DNS rebinding: a page whose name was made to resolve to this
    machine sends its own name.

    Without tokens the server trusts everybody who reaches it on loopback, so only names of loopback are accepted.
    """

    def __init__(self, names: Sequence[str], *, has_tokens: bool) -> None:
        self._names = frozenset(name.strip("[]") for name in names if not name.startswith("*."))
        self._endings = (*(name[1:] for name in names if name.startswith("*.")), ".localhost")
        self._any = has_tokens and not names

    def allows(self, host: str) -> bool:
        split = split_host(host)
        return self._any or (
            split is not None and (split[0] in self._names or split[0].endswith(self._endings) or is_loopback(split[0]))
        )


class Proxies:
    """Middleware that sets what the browser requested: its address, scheme and host if a trusted proxy forwards them,
    and the whole path, whether the proxy strips the root path or not."""

    def __init__(self, app: ASGIApp, config: HttpConfig) -> None:
        self._forwarded = ProxyHeadersMiddleware(cast(Any, app), list(config.trusted_proxies))
        self._root = config.root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self._correct(scope)
        await self._forwarded(cast(Any, scope), cast(Any, receive), cast(Any, send))

    def _correct(self, scope: Scope) -> None:
        peer, root, path = scope.get("client"), self._root, scope["path"]
        # A listener on `::` has IPv4 peers in IPv6.
        if peer is not None and (address := _address(peer[0])) is not None:
            scope["client"] = (str(address), peer[1])
            host = Headers(scope=scope).get("x-forwarded-host", "").partition(",")[0].strip()
            if str(address) in self._forwarded.trusted_hosts and split_host(host) is not None:
                scope[_ORIGINAL_HOST] = Headers(scope=scope).get("host", "")
                others = [(name, value) for name, value in scope["headers"] if name != b"host"]
                scope["headers"] = [(b"host", host.encode("latin-1")), *others]
        if not root:
            return
        scope["root_path"] = root
        if path != root and not path.startswith(f"{root}/"):
            scope["path"] = root + path
            if scope.get("raw_path") is not None:
                scope["raw_path"] = root.encode() + scope["raw_path"]


def _address(text: str) -> IpAddress | None:
    """IPv4 in IPv6 as IPv4."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, ipaddress.IPv6Address) else address


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
