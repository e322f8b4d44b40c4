"""Addresses of servers and git repositories. No part of an address is in an error: it may hold credentials."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, unquote, urlsplit

from reposync.config.interpolation import Interpolated

_USER_INFO = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<user_info>[^/?#]*)@(?P<rest>.*)", re.DOTALL)


class AddressError(ValueError):
    """An address that does not fit; the message goes behind the name of its key."""


def split_http_url(value: str) -> SplitResult:
    """`urlsplit` of an http(s) URL with a host. Raises AddressError."""
    if re.search(r"\s", value):
        raise AddressError("must not have spaces in it")
    try:
        split = urlsplit(value)
        port_is_wrong = split.port == 0
    except ValueError:
        raise AddressError("is no address: its host or port cannot be read") from None
    if split.scheme not in ("http", "https"):
        raise AddressError("must start with https:// (or http://)")
    if not split.hostname or port_is_wrong:
        raise AddressError("is no address: it names no host, or port 0")
    return split


def base_url(value: str) -> str:
    """An http(s) address without credentials, query and fragment; a slash at its end is taken off."""
    split = split_http_url(value)
    if "@" in split.netloc:
        raise AddressError("must not hold credentials; there is a key of its own for them")
    if re.search(r"[?#]", value):
        raise AddressError("must not have a query or fragment")
    return value.rstrip("/")


def gitlab_url(value: str) -> str:
    """The address of a GitLab server. Raises AddressError."""
    if re.search(r"/api(?:/v[0-9]+)?$", value):
        raise AddressError("must be the address of GitLab itself, without /api/v4")
    return value


def git_url(value: str) -> str:
    """The address of a git repository over http(s), its credentials taken out before. Raises AddressError."""
    if re.match(r"(?:ssh|git|git\+ssh)://", value) or re.match(r"[^/:@\s]+@[^/:\s]+:", value):
        raise AddressError("is an ssh or git:// address, which is not supported: write https://, with a token")
    if value.startswith(("/", ".", "~", "file://")):
        raise AddressError("is on this machine: write it under `path`")
    split = split_http_url(value)
    if "@" in split.netloc:
        raise AddressError("holds credentials that stand in `username` or `password` as well: keep one of the two")
    if re.search(r"[?#]", value):
        raise AddressError("must not have a query or fragment")
    if not split.path.strip("/"):
        raise AddressError("names a server, but no repository on it")
    return value


def split_credentials(url: str) -> tuple[str, str | None, str | None]:
    """`url` without user info, the user (None: there is no user info) and the password (None: there is none).

    What stands in the file is percent-decoded. The value of a variable in the user info is taken as it is: a token that
    holds `@`, `/` or `%` neither breaks the address nor sends it to another host.
    """
    if not isinstance(url, Interpolated):
        match = _USER_INFO.match(url)
        if not match:
            return url, None, None
        user, colon, password = match["user_info"].partition(":")
        return match["scheme"] + match["rest"], unquote(user), unquote(password) if colon else None
    # Each variable is one character that no file holds, so that the address is taken apart as it was written.
    holes = {chr(0xF0000 + index): part.text for index, part in enumerate(url.parts) if part.variable is not None}
    written = "".join(
        part.text if part.variable is None else chr(0xF0000 + index) for index, part in enumerate(url.parts)
    )

    def filled(text: str, *, decode: bool = False) -> str:
        pieces = re.split("([\U000f0000-\U000fffff])", text)
        return "".join(holes.get(piece, unquote(piece) if decode else piece) for piece in pieces)

    match = _USER_INFO.match(written)
    if not match:
        # The whole address may come from one variable.
        return split_credentials(str(url)) if "://" not in written else (str(url), None, None)
    user, colon, password = match["user_info"].partition(":")
    rest = match["scheme"] + match["rest"]
    return filled(rest), filled(user, decode=True), filled(password, decode=True) if colon else None
