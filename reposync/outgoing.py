"""How this process reaches other servers over HTTP: through which proxy, trusting whom, and how long they may take.

One place for all clients. Their libraries read the environment each in its own way: one takes NO_PROXY=10.0.0.0/8 for a
name, one knows SSL_CERT_FILE and another REQUESTS_CA_BUNDLE, and none ends an answer that comes a byte a second.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import ssl
import time
import zlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from reposync.errors import ConfigError

if TYPE_CHECKING:
    import httpx

# The usual names, in the order in which they are looked at; the first that is set counts.
AUTHORITY_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
LEAST_BYTES_A_SECOND = 1_000
"""Slower than this over a whole time-out, an answer is as good as none."""

UNFOLD_STEP_BYTES = 256 * 1024
SUSPICIOUS_BYTES = 16 * 1024 * 1024
SUSPICIOUS_RATIO = 100
"""JSON of listings unfolds to ten times its size at most; what gzip makes of zeros, to a thousand times."""

_DEFAULT_PORTS = {"http": 80, "https": 443}


class TooSlow(TimeoutError):
    """An answer that comes, but not in any time that would do."""


IN_PLACE_SECONDS = 30.0
"""A call waits as long if its server asks for it. If it asks for more, the call fails, and the worker does something
else meanwhile."""


class TooLarge(Exception):
    """An answer larger than what is taken, or that unfolds to far more than what came."""


# Proxies -------------------------------------------------------------------------------------------------------------


def proxy_for(url: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The proxy that a request to `url` goes through; None: none.

    `HTTPS_PROXY`, `HTTP_PROXY` by the scheme of `url`, then `ALL_PROXY`, except for what `NO_PROXY` names, all of them
    in small letters first: `*`, host names with everything below them, addresses, networks (10.0.0.0/8), each also
    with a port. This machine's loopback addresses and `localhost` are never asked for through a proxy.
    Raises ConfigError, without any password, where the variable holds no address of an HTTP proxy.
    """
    parts = urlsplit(url)
    host, port = (parts.hostname or "").lower(), parts.port or _DEFAULT_PORTS.get(parts.scheme)
    if is_loopback(host):
        return None
    for name in (f"{parts.scheme}_proxy", "all_proxy"):
        # HTTP_PROXY in capitals is what a CGI program would have from a request's `Proxy` header; this is none.
        given = next((environ[each] for each in (name, name.upper()) if environ.get(each, "").strip()), None)
        if given is not None:
            proxy = _checked_proxy(given.strip(), name)
            excepted = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
            return None if _is_excepted(host, port, excepted) else proxy
    return None


def proxy_passwords(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Those that stand in the addresses of proxies, whatever else is wrong with these."""
    names = ("https_proxy", "http_proxy", "all_proxy")
    given = (environ.get(each, "") for name in names for each in (name, name.upper()))
    credentials = (each.rpartition("://")[2].rpartition("@")[0] for each in given)
    return [unquote(password) for each in credentials if (password := each.partition(":")[2])]


def _checked_proxy(given: str, name: str) -> str:
    text = given if "://" in given else f"http://{given}"
    try:
        parts = urlsplit(text)
        is_address = bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, is_address = urlsplit(""), False
    if parts.scheme.startswith("socks"):
        raise ConfigError(
            f"{name.upper()} names a SOCKS proxy; reposync speaks to HTTP proxies alone.",
            remedy="Name an HTTP proxy, or except this server in NO_PROXY.",
        )
    if not is_address or parts.scheme not in _DEFAULT_PORTS:
        raise ConfigError(f"{name.upper()} is no address of a proxy.", remedy="Write it as http://host:port.")
    return text


def is_loopback(host: str) -> bool:
    """Other names for this machine are for the resolver to know, and it may change its mind."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_excepted(host: str, port: int | None, excepted: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    for entry in re.split(r"[,\s]+", excepted.lower()):
        if entry == "*":
            return True
        name, _, only_port = entry.rpartition(":")
        if name and only_port.isdigit() and (":" not in name or name.startswith("[")):
            if int(only_port) != port:
                continue
            entry = name
        entry = entry.strip("[]")
        if address is not None:
            try:
                if address in ipaddress.ip_network(entry, strict=False):
                    return True
            except ValueError:
                continue
        elif (domain := entry.removeprefix("*").strip(".")) and (host == domain or host.endswith(f".{domain}")):
            return True
    return False


# Certificates --------------------------------------------------------------------------------------------------------


def authorities(ca_file: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """The file, or folder, of the authorities whose certificates are trusted: `ca_file`, else what the first of
    AUTHORITY_VARIABLES names, else Mozilla's list. Not looked at."""
    if ca_file is not None:
        return ca_file
    for name in AUTHORITY_VARIABLES:
        if given := environ.get(name, "").strip():
            return Path(given)
    import certifi

    return Path(certifi.where())


def names_authorities(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment says whom to trust."""
    return any(environ.get(name, "").strip() for name in AUTHORITY_VARIABLES)


def trust(ca_file: Path | None = None, environ: Mapping[str, str] = os.environ) -> ssl.SSLContext:
    """Certificates are always checked, against `authorities`. Reads files: 20 ms. Raises ConfigError where there is
    none that can be read."""
    found = authorities(ca_file, environ)
    try:
        if found.is_dir():
            return ssl.create_default_context(capath=str(found))
        return ssl.create_default_context(cafile=str(found))
    except (OSError, ValueError) as error:
        name = next((name for name in AUTHORITY_VARIABLES if environ.get(name, "").strip() == str(found)), None)
        which = f"The CA file {found}" if ca_file is not None or name is None else f"{name} ({found})"
        raise ConfigError(
            f"{which} cannot be used: {error}.", remedy="It must hold certificates in PEM form."
        ) from error


def client_options(url: str, ca_file: Path | None = None, **transport: Any) -> dict[str, Any]:
    """What an httpx client that asks the server of `url` alone is made with; `transport`: further options of the way
    there, such as `limits`. Reads files: 20 ms. Raises ConfigError."""
    import httpx

    context, rest = trust(ca_file), url.partition("://")[2]
    mounts = {}
    for scheme in ("https",) if url.startswith("https:") else ("http", "https"):  # http may lead on to https
        if proxy := proxy_for(f"{scheme}://{rest}"):
            to_proxy = trust() if proxy.startswith("https:") else None
            way = httpx.Proxy(proxy, ssl_context=to_proxy)
            mounts[f"{scheme}://"] = httpx.AsyncHTTPTransport(verify=context, proxy=way, trust_env=False, **transport)
    return {"verify": context, "trust_env": False, "mounts": mounts, **transport}


def certificate_reason(error: BaseException) -> str | None:
    """Why a server's certificate is refused, in OpenSSL's words, where `error` or what it came from is about that."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        if isinstance(current, ssl.SSLCertVerificationError):
            return current.verify_message or "it was refused"
        if "CERTIFICATE_VERIFY_FAILED" in str(current):
            return str(current).partition("certificate verify failed: ")[2].partition(" (_ssl")[0] or "it was refused"
        current = current.__cause__ or current.__context__
    return None


# Answers -------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Pace:
    """Whether one answer comes fast enough: LEAST_BYTES_A_SECOND over any `window_seconds` from its first byte on, and
    whole within `total_seconds`. An answer that has not begun is for the time-out of its connection to end."""

    window_seconds: float
    total_seconds: float
    _since: float | None = field(default=None, init=False)
    _counted_since: float = field(default=0.0, init=False)
    _bytes: int = field(default=0, init=False)

    def took(self, size_bytes: int) -> None:
        """Some of the answer came. Raises TooSlow."""
        now = time.monotonic()
        if self._since is None:
            self._since = self._counted_since = now
        self._bytes += size_bytes
        if now - self._since > self.total_seconds:
            raise TooSlow(f"the answer did not come in whole within {self.total_seconds:g} s")
        elapsed = now - self._counted_since
        if elapsed >= self.window_seconds:
            if self._bytes < elapsed * LEAST_BYTES_A_SECOND:
                raise TooSlow(f"no more than {self._bytes:,} bytes came in {elapsed:.0f} s")
            self._counted_since, self._bytes = now, 0


def parse_json(body: bytes | bytearray) -> Any:
    """What a server answered. Raises ValueError if it is no JSON, nests over 200 deep or has a number of 4,300 digits.

    `json.loads` raises RecursionError for deep ones, and what it just accepts raises it later, in a `repr` or `str`.
    """
    from pydantic_core import from_json

    return from_json(body, allow_inf_nan=False)


def check_unfolded(came_bytes: int, unfolded_bytes: int) -> None:
    """Raises TooLarge for what was packed to harm its readers."""
    if unfolded_bytes > SUSPICIOUS_BYTES and unfolded_bytes > SUSPICIOUS_RATIO * came_bytes:
        raise TooLarge(f"{came_bytes:,} bytes that unfold to more than {unfolded_bytes:,}")


async def pieces(response: httpx.Response, pace: Pace, max_bytes: int) -> AsyncIterator[bytes]:
    """The body as it comes, unfolded in bounded pieces. Raises TooSlow, TooLarge, httpx.DecodingError, and whatever
    the connection does."""
    import httpx

    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", "x-gzip", "deflate"):
        raise httpx.DecodingError(f"it is packed as {encoding[:30]!r}", request=response.request)
    inflater = None
    if encoding != "identity":
        # Of gzip or of zlib: it tells them apart itself.
        inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)
    came = unfolded = 0
    async for raw in response.aiter_raw():
        pace.took(len(raw))
        came += len(raw)
        for piece in (raw,) if inflater is None else _unfold(inflater, raw, response):
            unfolded += len(piece)
            if unfolded > max_bytes:
                raise TooLarge(f"more than {max_bytes:,} bytes")
            if inflater is not None:
                check_unfolded(came, unfolded)
                await asyncio.sleep(0)  # what came in one piece may unfold to hundreds
            if piece:
                yield piece


def _unfold(inflater: Any, raw: bytes, response: httpx.Response) -> Any:
    import httpx

    try:
        while raw:
            yield inflater.decompress(raw, UNFOLD_STEP_BYTES)
            raw = inflater.unconsumed_tail
    except zlib.error as error:
        raise httpx.DecodingError(f"it does not unpack ({error})", request=response.request) from error
