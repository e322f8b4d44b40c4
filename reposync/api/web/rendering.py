"""Renders the pages, and errors as pages: templates, their filters, static files. Everything from a repository is
escaped for HTML and made visible if it is a control character."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

from fastapi import Request, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.datastructures import QueryParams
from starlette.responses import HTMLResponse
from starlette.staticfiles import PathLike, StaticFiles
from starlette.types import Scope

from reposync.api.auth import ANONYMOUS, IN_A_BROWSER, SAFE_METHODS, Principal, actor_of, opened_of
from reposync.api.errors import RETRY_AFTER_SECONDS, ErrorPage, help_path
from reposync.api.etags import conditional_body
from reposync.api.routing import ApiParts
from reposync.api.web.figures import progress
from reposync.app.application import Application
from reposync.errors import RepoSyncError
from reposync.operations.core import Actor, Role, Rule
from reposync.operations.search import Hit
from reposync.telemetry.health import Health
from reposync.visible import NOTHING
from reposync.words import ago, duration, escape_unprintable, file_address, until, url_of_lines

IDLE_REFRESH_SECONDS = 5
STATIC = files("reposync.api.web") / "static"

_MAINTAINS = "You see what GitLab lets you read, and may sync what you maintain there."

# Relative times change by themselves; that is no change of a page.
_VOLATILE = re.compile(r'data-relative(?:="for")?>[^<]*<')
_IMMUTABLE, _REVALIDATE = "public, max-age=31536000, immutable", "no-cache"


@dataclass(frozen=True, slots=True)
class Page:
    """A request for a page. `principal`: None for an unknown client, who gets no links to pages that need a login."""

    parts: ApiParts
    request: Request
    principal: Principal | None
    form: QueryParams | None = None
    """The fields of a form that was sent, in place of those of the address."""

    @property
    def app(self) -> Application:
        """Raises Starting, StoreUnavailable."""
        return self.parts.application()

    @property
    def actor(self) -> Actor:
        return actor_of(self.request)

    @property
    def query(self) -> QueryParams:
        return self.request.query_params if self.form is None else self.form

    @property
    def root(self) -> str:
        return self.parts.access.config.root_path

    def show(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """`values` override what all pages have in common."""
        principal = self.principal
        common = {
            "root": self.root,
            "static": lambda name: f"{self.root}/static/{name}?{_digests()[name]}",
            "version": self.parts.version,
            "here": self.request.scope["path"].removeprefix(self.root) or "/",
            "signed_in": principal is not None,
            "has_login": principal is not None and principal.has_session,
            "may": lambda rule: principal is not None and principal.may(Rule(rule)),
            "maintains": lambda identity: principal is not None and identity in principal.maintains,
            **_who(principal, is_person=opened_of(self.request) is not None),
            "has_people": self.parts.access.people is not None,
            "done": self.query.get("done") if principal is not None else None,
            "refresh_seconds": IDLE_REFRESH_SECONDS,
            "troubles": _troubles(self.parts.health) if principal and principal.may(Rule.READ_EVERYTHING) else [],
        }
        html = environment().get_template(template).render({**common, **values})
        content = html.encode("utf-8", "replace")
        if status != 200:
            return HTMLResponse(content, status)
        same = _VOLATILE.sub("", html).encode("utf-8", "replace")
        return conditional_body(self.request, content, "text/html; charset=utf-8", same_if=same)


def _who(principal: Principal | None, *, is_person: bool) -> dict[str, str | None]:
    """As whom somebody sees the page, in the header. `person`: somebody who signed in at GitLab, who has pages of their
    own. Nobody is named if the server has no tokens."""
    if principal is None or principal.name == ANONYMOUS:
        return {"who": None, "is_role": None, "person": None}
    if is_person:
        word = "You see what GitLab lets you read." if principal.maintains == NOTHING else _MAINTAINS
        return {"who": principal.name, "is_role": word, "person": principal.name if principal.has_session else None}
    role = "operate" if principal.role >= Role.OPERATE else "read"
    name = principal.name.removesuffix(IN_A_BROWSER)
    word = "may sync, pause, cancel and approve" if role == "operate" else "may read, and change nothing"
    return {"who": f"{role} token", "is_role": f"{name}: {word}.", "person": None}


def _troubles(health: Health) -> list[tuple[str, str]]:
    """What does not work now, and why."""
    found = health.snapshot().components.items()
    return [(name, each.reason or each.status) for name, each in found if each.status in ("degraded", "down")]


class StaticContent(StaticFiles):
    """Static files. A URL with the digest of the content is cached for ever."""

    def __init__(self) -> None:
        super().__init__(directory=str(STATIC))

    def file_response(self, full_path: PathLike, stat_result: Any, scope: Scope, status_code: int = 200) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        query = scope["query_string"].decode("latin-1")
        response.headers["ETag"] = f"W/{response.headers['ETag']}"
        response.headers["Cache-Control"] = _IMMUTABLE if query in _digests().values() else _REVALIDATE
        return response


@cache
def _digests() -> Mapping[str, str]:
    """File name -> prefix of the digest of its content."""
    return {
        each.name: hashlib.sha256(each.read_bytes()).hexdigest()[:12] for each in STATIC.iterdir() if each.is_file()
    }


@cache
def environment() -> Environment:
    """One for the process: it keeps the compiled templates."""
    environment = Environment(
        loader=PackageLoader("reposync.api.web"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    filters: dict[str, Callable[..., object]] = {
        "iso": lambda when: when.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "utc": lambda when: f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC",
        "utc_short": lambda when: f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S}",
        "relative": lambda when: _unbroken(ago(when) if when <= datetime.now(UTC) else until(when)),
        "lasting": lambda when: _unbroken(ago(when).removesuffix(" ago")),
        "duration": lambda seconds: _unbroken(duration(seconds)),
        "rounded_duration": lambda seconds: _unbroken(
            f"{seconds:.0f} s" if seconds < 9.5 else duration(max(10, seconds))
        ),
        "size": lambda count: _unbroken(size(count)),
        "visible": lambda text: escape_unprintable(str(text)),
        "prose": prose,
        "help": help_path,
        "query": query,
        "file_address": file_address,
        "lines_address": lines_address,
        "progress": progress,
        "web_link": web_link,
        "url_of_lines": url_of_lines,
    }
    environment.filters.update(filters)
    return environment


def _unbroken(text: str) -> str:
    """On one line: a number stays with its unit."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def size(count: float) -> str:
    """A number of bytes in words: `840 B`, `2.4 MB`."""
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= least:
            return f"{count / least:.1f} {unit}"
    return f"{count:.0f} B"


def query(values: Mapping[str, str | Sequence[str]]) -> str:
    """The query string of an address, without empty values; of a list, each is repeated."""
    kept = {key: value for key, value in values.items() if value}
    return f"?{urlencode(kept, doseq=True)}" if kept else ""


def lines_address(hit: Hit, start: int, end: int) -> str:
    """The address of the page of its file that marks these lines, without the root."""
    return f"{file_address(hit.repository, hit.path)}?lines={start}-{end}#L{start}"


def web_link(url: str | None) -> str | None:
    """Links come from the configuration; a browser must not open anything but a web page."""
    return url if url is not None and url.startswith(("https://", "http://")) else None


def prose(text: str) -> Markup:
    """Text in which words between backticks are code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped before


# Errors ---------------------------------------------------------------------------------------------------------------

# Programs request these, whatever they accept.
_NO_PAGES = ("/api", "/static", "/healthz", "/readyz", "/metrics", "/openapi.json")


def _ways_on(path: str) -> Iterator[tuple[str, str]]:
    """Label and address, without the root, of pages that may have what is not at `path`. They are the same whether it
    does not exist or is hidden."""
    kind, _, rest = path.strip("/").partition("/")
    name, is_file, file = rest.partition("/-/")
    if kind == "files" and is_file and (base := file.rstrip("/").rpartition("/")[2]):
        yield f"Search for {base}", f"/search{query({'q': base})}"
    if kind in ("files", "repositories") and name:
        yield f"Repositories with {name} in their name", f"/{query({'name': name})}"


def error_pages(parts: ApiParts) -> ErrorPage:
    async def page(scope: Scope, error: RepoSyncError) -> Response | None:
        request, status = Request(scope), error.status
        path = scope["path"].removeprefix(parts.access.config.root_path)
        is_for_programs = any(path == top or path.startswith(f"{top}/") for top in _NO_PAGES)
        # Only browsers accept HTML.
        if is_for_programs or "text/html" not in request.headers.get("accept", ""):
            return None
        tries_again = status == 503 and request.method in SAFE_METHODS
        retry_seconds = RETRY_AFTER_SECONDS if tries_again else None
        # Cookies of another host name prove nothing.
        is_stranger = error.code == "HOST_NOT_ALLOWED"
        principal = None if is_stranger else await parts.access.principal_or_none(request)
        ways = list(_ways_on(path)) if status == 404 else []
        title = "Not found" if status == 404 else "This did not work"
        values = {"message": str(error), "code": error.code, "title": title, "retry_seconds": retry_seconds}
        return Page(parts, request, principal).show("error.html", status=status, ways=ways, **values)

    return page
