"""Hosts and addresses: which names the server accepts, and which forwarded headers it trusts."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from reposync.config.sections import HttpConfig
from reposync.outgoing import is_loopback

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::(?P<port>[0-9]{1,5}))?")
_DEFAULT_PORTS = {"http": 80, "https": 443}


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
