"""Requests that a person's browser sends without the person: what another site's page makes it do."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request

from reposync.api.hosts import split_host
from reposync.api.sessions import derived
from reposync.config.settings import ApiToken
from reposync.errors import RepoSyncError

CSRF_HEADER = "X-CSRF-Token"
CSRF_FIELD = "csrf"

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# Not multipart: its files would lie on the disk of a server that then refuses them.
_FORM = "application/x-www-form-urlencoded"
_DEFAULT_PORTS = {"http": 80, "https": 443}


class CsrfRefused(RepoSyncError):
    """A request with a session's cookie, and without the proof that a page of ours sent it."""

    code = "CSRF_REFUSED"
    status = 403


def is_from_elsewhere(headers: Headers) -> bool:
    """Whether a page of another origin made the browser send this. What no browser sent is from nowhere.

    `Sec-Fetch-Site` is what browsers say and pages cannot touch, but only towards https and loopback; `Origin` is there
    with every POST. `same-site` does not count as ours: it is another port of this machine, or a sibling's subdomain.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    if origin is None:
        return False
    try:
        split = urlsplit(origin)
        named, port = split.hostname, split.port or _DEFAULT_PORTS.get(split.scheme)
    except ValueError:
        return True
    ours = split_host(headers.get("host", ""))
    if named is None or ours is None:
        return True
    return (named, port) != (ours[0], ours[1] or _DEFAULT_PORTS.get(split.scheme))


def is_form(request: Request) -> bool:
    """Whether a CSRF token may stand in the body."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == _FORM


async def proof_in(request: Request) -> str:
    """What the request gives as its CSRF token, by header or in a form; empty where there is none."""
    if found := request.headers.get(CSRF_HEADER):
        return found
    if not is_form(request):
        return ""
    field = (await request.form()).get(CSRF_FIELD)
    return field if isinstance(field, str) else ""


def check_proof(given: str, expected: str) -> None:
    """Raises CsrfRefused. The time it takes depends on neither."""
    if not hmac.compare_digest(_digest(given), _digest(expected)):
        raise CsrfRefused(
            "This request does not prove that a page of this server sent it.",
            remedy=f"Load the page again. Programs send `Authorization: Bearer TOKEN`, and need no {CSRF_HEADER}.",
        )


class LoginForms:
    """Proofs for the form that somebody logs in with, who has no session yet: of a cookie that came with the form."""

    def __init__(self, tokens: Iterable[ApiToken]) -> None:
        held = sorted(token.secret.get_secret_value() for token in tokens)
        # Without tokens nobody logs in.
        self._key = derived("\n".join(held).encode(), "login form") if held else secrets.token_bytes(32)

    def cookie(self, before: str | None) -> str:
        """The one that is there already stays: the form may be open in two tabs."""
        return before if before and re.fullmatch(r"[\w-]{22}", before) else secrets.token_urlsafe(16)

    def proof(self, cookie: str) -> str:
        return hmac.digest(self._key, _bytes(cookie), hashlib.sha256).hex()


def _digest(text: str) -> bytes:
    return hashlib.sha256(_bytes(text)).digest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
