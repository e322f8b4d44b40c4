"""Addresses of servers: taking secrets out of them, and which of them may be sent a secret."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from pydantic import SecretStr

from reposync.errors import ConfigError, SourceError
from reposync.outgoing import names_authorities, proxy_for, trust

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """An http(s) URL without user and password, and those that were written into it."""

    url: str
    username: str | None
    password: SecretStr | None


def parse_address(url: str, *, what: str) -> Address:
    """Take `url` apart. Raises ConfigError where it is no http(s) URL; the message shows no password."""
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{what} is not a URL: {error}.", remedy="Write it as https://host/path.") from error
    shown = _without_userinfo(parts)
    if parts.scheme not in _DEFAULT_PORTS or not host:
        raise ConfigError(
            f"{what} {shown!r} is not an http(s) URL.",
            remedy="Write it as https://host/path: ssh addresses have an https form; a folder is given by its path.",
        )
    username = unquote(parts.username) if parts.username else None
    password = SecretStr(unquote(parts.password)) if parts.password else None
    return Address(shown.rstrip("/"), username, password)


def header_secret(secret: SecretStr | None, *, what: str) -> str | None:
    """The secret as a header takes it: without the line end that files bring along. Raises ConfigError, without
    showing it, where it cannot be one: HTTP libraries would print it in their own message."""
    if secret is None:
        return None
    value = secret.get_secret_value().strip()
    if not value:
        return None
    if not value.isascii() or not value.isprintable() or " " in value:
        raise ConfigError(f"{what} holds characters that no token has.", remedy="Copy it again, without line breaks.")
    return value


def same_home(old: str, new: str) -> bool:
    """True where a secret meant for `old` may be sent to `new`: the same scheme, host and port, or https instead of
    http on the same host."""
    before, after = urlsplit(old), urlsplit(new)
    if before.hostname != after.hostname:
        return False
    if before.scheme == after.scheme:
        return _port(before) == _port(after)
    return before.scheme == "http" and after.scheme == "https" and _port(before) == 80 and _port(after) == 443


class OtherServer(SourceError):
    """A redirect leads to another server, which must not see what was meant for this one."""


def redirected(url: str, location: str) -> str:
    """Where a redirect from `url` leads. Raises OtherServer where that is no longer the same one."""
    target = urljoin(url, location)
    if not same_home(url, target):
        there = urlsplit(target)
        raise OtherServer(
            f"{_origin(urlsplit(url))} redirects to another server, {_origin(there)}; nothing was sent there.",
            remedy="If that is the right one, write its address into the configuration.",
        )
    return target


def check_way(url: str, ca_file: Path | None) -> None:
    """Raises ConfigError where there is no way to `url`: what should hold the authorities holds no certificate, or what
    the environment names as a proxy is none."""
    if ca_file is not None or names_authorities():
        trust(ca_file)
    proxy_for(url)


def certificate_refused(url: str, reason: str) -> SourceError:
    """The error where the server's certificate is not trusted."""
    return SourceError(
        f"The certificate of {_origin(urlsplit(url))} is not trusted: {reason}.",
        remedy="If its authority is your own, name its certificate as ca_file.",
    )


def _port(parts: SplitResult) -> int | None:
    return parts.port or _DEFAULT_PORTS.get(parts.scheme)


def _origin(parts: SplitResult) -> str:
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")


def _without_userinfo(parts: SplitResult) -> str:
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
