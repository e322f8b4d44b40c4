"""Rules for outgoing connections: addresses, proxies, certificates.

All clients share them. HTTP libraries read the environment each in its own way: one takes NO_PROXY=10.0.0.0/8 for a
host name, one knows SSL_CERT_FILE and another REQUESTS_CA_BUNDLE.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import SplitResult, unquote, urlsplit

from reposync.errors import ConfigError, SourceError

CA_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""The first one that is set counts."""

IN_PLACE_SECONDS = 30.0
"""The longest requested wait that a call waits for in place. For a longer one it fails: the worker does other work."""

LONGEST_WAIT_SECONDS = 3_600.0
"""The longest wait that a server may request: one whose clock or proxy is wrong says ten years."""

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Timeouts:
    """To connect, and between two pieces of an answer."""

    connect_seconds: float = 10.0
    read_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a failed call is repeated: up to `attempts` after errors, RATE_LIMIT_FACTOR times as often after rate
    limits, and until `max_wait_seconds` of waiting are used up. The delay grows from `first_delay_seconds`; a server
    can lengthen it and not shorten it. A requested wait over `longest_wait_seconds` ends the call. `within_seconds`
    bounds it all."""

    attempts: int = 4
    first_delay_seconds: float = 0.5
    max_delay_seconds: float = 8.0
    longest_wait_seconds: float = IN_PLACE_SECONDS
    max_wait_seconds: float = IN_PLACE_SECONDS
    within_seconds: float | None = None


class RequestObserver(Protocol):
    """Called on the event loop, for metrics. Must return at once and raise nothing."""

    def request(self, kind: str) -> None:
        """A request was sent, redirects and retries included."""
        ...

    def rate_limited(self, seconds: float) -> None:
        """The server limits the rate; the client now waits this long."""
        ...


class TooLarge(Exception):
    """The answer is larger than accepted, or it decompresses to far more than was received."""


class OtherServer(SourceError):
    """A redirect leads to a different server, which must not see the credentials for this one."""


# Addresses -----------------------------------------------------------------------------------------------------------


def origin(url: str) -> str:
    """Scheme, host and port of `url`."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")


def same_origin(old: str, new: str) -> bool:
    """Whether a secret for `old` may be sent to `new`: the same scheme, host and port, or https instead of http on the
    same host with the default ports."""
    before, after = urlsplit(old), urlsplit(new)
    if before.hostname != after.hostname:
        return False
    if before.scheme == after.scheme:
        return _port(before) == _port(after)
    return (before.scheme, after.scheme, _port(before), _port(after)) == ("http", "https", 80, 443)


def _port(parts: SplitResult) -> int | None:
    return parts.port or _DEFAULT_PORTS.get(parts.scheme)


# Proxies -------------------------------------------------------------------------------------------------------------


def proxy_for(url: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The proxy for requests to `url`, or None.

    `HTTPS_PROXY` or `HTTP_PROXY` by the scheme of `url`, then `ALL_PROXY`, lower case first, except for hosts in
    `NO_PROXY`: `*`, host names with their subdomains, addresses, networks (10.0.0.0/8), each with an optional port.
    Loopback addresses never use a proxy. Raises ConfigError, without a password, for what is no HTTP proxy."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    if is_loopback(host):
        return None
    for name in (f"{parts.scheme}_proxy", "all_proxy"):
        value = next((environ[each] for each in (name, name.upper()) if environ.get(each, "").strip()), None)
        if value is not None:
            proxy = _checked_proxy(value.strip(), name)
            no_proxy = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
            return None if _matches_no_proxy(host, _port(parts), no_proxy) else proxy
    return None


def proxy_passwords(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The passwords in proxy addresses, also in malformed ones."""
    names = ("https_proxy", "http_proxy", "all_proxy")
    values = (environ.get(each, "") for name in names for each in (name, name.upper()))
    credentials = (each.rpartition("://")[2].rpartition("@")[0] for each in values)
    return [unquote(password) for each in credentials if (password := each.partition(":")[2])]


def _checked_proxy(value: str, name: str) -> str:
    text = value if "://" in value else f"http://{value}"
    with contextlib.suppress(ValueError):
        parts = urlsplit(text)
        if parts.scheme in _DEFAULT_PORTS and parts.hostname and parts.port != 0:
            return text
    what = "a SOCKS proxy" if text.lower().startswith("socks") else "what is not the address of a proxy"
    raise ConfigError(
        f"{name.upper()} names {what}; reposync supports HTTP proxies.",
        remedy="Write it as http://host:port, or except this server in NO_PROXY.",
    )


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address or `localhost`; other names are not resolved."""
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _matches_no_proxy(host: str, port: int | None, no_proxy: str) -> bool:
    address = _address(host)
    for entry in re.split(r"[,\s]+", no_proxy.lower()):
        name, _, only_port = entry.rpartition(":")
        if name and only_port.isdigit() and (":" not in name or name.startswith("[")):
            if int(only_port) != port:
                continue
            entry = name
        entry = entry.strip("[]")
        domain = entry.removeprefix("*").strip(".")
        if entry == "*" or (domain and address is None and f".{host}".endswith(f".{domain}")):
            return True
        if address is not None:
            with contextlib.suppress(ValueError):
                if address in ipaddress.ip_network(entry, strict=False):
                    return True
    return False


# Certificates --------------------------------------------------------------------------------------------------------


def ssl_context(ca_file: Path | None = None, environ: Mapping[str, str] = os.environ) -> ssl.SSLContext:
    """A context that trusts `ca_file`, else the first of CA_VARIABLES that is set, else Mozilla's list. Reads files:
    20 ms. Raises ConfigError if the file or folder cannot be read."""
    variable = next((name for name in CA_VARIABLES if ca_file is None and environ.get(name, "").strip()), None)
    if variable is not None:
        ca_file = Path(environ[variable].strip())
    elif ca_file is None:
        import certifi

        ca_file = Path(certifi.where())
    try:
        if ca_file.is_dir():
            return ssl.create_default_context(capath=str(ca_file))
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ValueError) as error:
        which = f"The CA file {ca_file}" if variable is None else f"{variable} ({ca_file})"
        raise ConfigError(
            f"{which} cannot be used: {error}.", remedy="It must hold certificates in PEM form."
        ) from error


def validate_transport(url: str, ca_file: Path | None) -> None:
    """Raises ConfigError if the CA bundle or the proxy for `url` cannot be used."""
    if ca_file is not None or any(os.environ.get(name, "").strip() for name in CA_VARIABLES):
        ssl_context(ca_file)
    proxy_for(url)


def client_options(url: str, ca_file: Path | None = None, **transport: Any) -> dict[str, Any]:
    """Arguments of an httpx client for the server of `url`; `transport`: more arguments for its transports, such as
    `limits`. Reads files: 20 ms. Raises ConfigError."""
    import httpx

    context, rest = ssl_context(ca_file), url.partition("://")[2]
    mounts = {}
    for scheme in ("https",) if url.startswith("https:") else ("http", "https"):  # http may redirect to https
        if proxy := proxy_for(f"{scheme}://{rest}"):
            proxy_context = ssl_context() if proxy.startswith("https:") else None
            target = httpx.Proxy(proxy, ssl_context=proxy_context)
            mounts[f"{scheme}://"] = httpx.AsyncHTTPTransport(
                verify=context, proxy=target, trust_env=False, **transport
            )
    return {"verify": context, "trust_env": False, "mounts": mounts, **transport}


# Answers -------------------------------------------------------------------------------------------------------------


def parse_json(body: bytes | bytearray) -> Any:
    """Raises ValueError for invalid JSON, nesting over 200 levels, or a number of 4,300 digits.

    `json.loads` raises RecursionError for deep nesting, and what it just accepts raises it later, in `repr` or `str`.
    """
    from pydantic_core import from_json

    return from_json(body, allow_inf_nan=False)


def printable(text: str | bytes) -> str:
    """Text of a server as one line without control characters, at most 300 long: for logs and terminals."""
    words = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return "".join(letter for letter in " ".join(words.split()) if letter.isprintable())[:300]
