"""Host names and proxies: which names the server accepts, and which forwarded headers it trusts."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import Scope

from reposync.config.sections import HttpConfig

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::(?P<port>[0-9]{1,5}))?")
_MAX_FORWARDED = 50


def split_host(value: str) -> tuple[str, int | None] | None:
    """Name (in lower case, IPv6 without brackets) and port of a Host header; None if it is not valid."""
    found = _HOST.fullmatch(value.strip())
    if found is None:
        return None
    name = found["name"].lower().removeprefix("[").removesuffix("]").removesuffix(".")
    return name, int(found["port"]) if found["port"] else None


def client_network(client: str) -> str:
    """The network that counts as one client: an IPv6 host owns 2**64 addresses."""
    try:
        address = ipaddress.ip_address(client)
    except ValueError:
        return client
    if address.version == 4:
        return client
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))


class AllowedHosts:
    """The host names that the server accepts, against DNS rebinding: a page whose name was made to resolve to this
    machine sends its own name.

    Without tokens the server trusts everybody who reaches it on loopback, so only names of loopback are accepted.
    """

    def __init__(self, names: Sequence[str], *, has_tokens: bool) -> None:
        self._names = frozenset(name.strip("[]") for name in names if not name.startswith("*."))
        self._endings = tuple(name[1:] for name in names if name.startswith("*."))
        self._any = has_tokens and not names

    def allows(self, host: str) -> bool:
        if self._any:
            return True
        split = split_host(host)
        if split is None:
            return False
        name = split[0]
        return name in self._names or name.endswith(self._endings or ("\0",)) or _is_loopback(name)


class TrustedNetworks:
    """Addresses and networks of trusted proxies."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = [ipaddress.ip_network(each) for each in networks]

    def contain(self, address: str) -> bool:
        """`address` may be an IPv6 network as `client_network` returns it."""
        try:
            parsed = ipaddress.ip_address(address.removesuffix("/64"))
        except ValueError:
            return False
        if parsed.version == 6 and parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        return any(parsed.version == network.version and parsed in network for network in self._networks)


class Proxies:
    """The proxies in front of this server."""

    def __init__(self, config: HttpConfig) -> None:
        self._trusted = TrustedNetworks(config.trusted_proxies)
        self._root = config.root_path

    def correct(self, scope: Scope) -> None:
        """Set what the browser requested: its address, scheme and host if a trusted proxy forwards them, and the whole
        path, whether the proxy strips the root path or not."""
        headers = Headers(scope=scope)
        peer = scope.get("client")
        if peer is not None and self._trusted.contain(peer[0]):
            self._apply_forwarded(scope, headers, peer)
        if self._root:
            self._complete_path(scope)

    def _apply_forwarded(self, scope: Scope, headers: Headers, peer: tuple[str, int]) -> None:
        scope["client"] = (self._client(headers, peer[0]), peer[1])
        proto = headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
        if proto in ("http", "https"):
            scope["scheme"] = proto
        host = headers.get("x-forwarded-host", "").partition(",")[0].strip()
        if host and split_host(host) is not None:
            others = [(name, value) for name, value in scope["headers"] if name != b"host"]
            scope["headers"] = [(b"host", host.encode("latin-1")), *others]

    def _client(self, headers: Headers, peer: str) -> str:
        """Each proxy appends its client: the last one that is not a trusted proxy."""
        named = ",".join(headers.getlist("x-forwarded-for")).split(",")[-_MAX_FORWARDED:]
        client = peer
        for each in reversed(named):
            address = _address(each.strip())
            if address is None:
                break
            client = address
            if not self._trusted.contain(address):
                break
        return client

    def _complete_path(self, scope: Scope) -> None:
        root, path = self._root, scope["path"]
        scope["root_path"] = root
        if path != root and not path.startswith(f"{root}/"):
            scope["path"] = root + path
            if scope.get("raw_path") is not None:
                scope["raw_path"] = root.encode() + scope["raw_path"]


def _address(text: str) -> str | None:
    """Some proxies append the port."""
    for each in (text, text.rpartition(":")[0].strip("[]"), text.strip("[]")):
        try:
            return str(ipaddress.ip_address(each))
        except ValueError:
            continue
    return None


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
