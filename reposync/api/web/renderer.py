"""What all pages of a server have in common."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from fastapi import Request, Response
from markupsafe import Markup
from starlette.responses import HTMLResponse
from starlette.staticfiles import PathLike, StaticFiles
from starlette.types import Scope

from reposync.api.access import Visitor
from reposync.api.conditional import matches
from reposync.api.csrf import CSRF_FIELD
from reposync.api.parts import ApiParts
from reposync.api.web.rendering import make_environment

IDLE_REFRESH_SECONDS = 5
STATIC = files("reposync.api.web") / "static"

# What changes by itself with the time is no change of a page.
_VOLATILE = re.compile(r"data-relative>[^<]*<")
_NOTICES = {
    "sync": "Queued: a worker takes it within a moment.",
    "pause": "Paused: no more ticks until it is resumed. What runs goes on.",
    "resume": "Resumed.",
    "cancel": "Asked to end.",
    "retry": "Queued again.",
    "approve": "Approved, and queued again.",
    "release": "The lock is gone.",
    "index-rollback": "The version before is live again.",
    "index-pause": "Held: the live version stays, whatever is configured.",
    "index-resume": "The next sync builds what is configured.",
}
_FOREVER, _ASK = "public, max-age=31536000, immutable", "no-cache"


class Renderer:
    """Pages of one server."""

    def __init__(self, parts: ApiParts) -> None:
        self._version = parts.version
        self._environment = make_environment()
        self.root = parts.access.config.root_path

    def page(
        self, request: Request, template: str, visitor: Visitor | None, *, status: int = 200, **values: Any
    ) -> Response:
        """`visitor` is None for somebody unknown, who gets no links to what only others may see. `values` may replace
        what is common to all pages."""
        csrf = visitor.csrf if visitor is not None else values.pop("csrf", "")
        common = {
            "root": self.root,
            "static": self._static,
            "version": self._version,
            "here": request.scope["path"].removeprefix(self.root) or "/",
            "csrf_field": lambda: Markup('<input type="hidden" name="{}" value="{}">').format(CSRF_FIELD, csrf),
            "signed_in": visitor is not None,
            "has_login": visitor is not None and visitor.by == "session",
            "may_operate": visitor is not None and visitor.may_operate,
            "notice": _NOTICES.get(request.query_params.get("done", "")) if visitor is not None else None,
            "refresh_seconds": IDLE_REFRESH_SECONDS,
        }
        html = self._environment.get_template(template).render({**common, **values})
        if status != 200:
            return HTMLResponse(html.encode("utf-8", "replace"), status, {"Cache-Control": "no-store"})
        tag = f'"{hashlib.sha256(_VOLATILE.sub("", html).encode("utf-8", "replace")).hexdigest()[:24]}"'
        # A session's pages are nobody else's, nor its own after it ended.
        headers = {"ETag": tag, "Cache-Control": "private, no-cache", "Vary": "Authorization, Cookie"}
        if matches(request.headers.get("if-none-match", ""), tag):
            return Response(status_code=304, headers=headers)
        return HTMLResponse(html.encode("utf-8", "replace"), headers=headers)

    def _static(self, name: str) -> str:
        return f"{self.root}/static/{name}?{_digests()[name]}"


class StaticContent(StaticFiles):
    """Files of the pages. Asked for by the digest of its content, one never has to be asked for again."""

    def __init__(self) -> None:
        super().__init__(directory=str(STATIC))

    def file_response(self, full_path: PathLike, stat_result: Any, scope: Scope, status_code: int = 200) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        asked = scope["query_string"].decode("latin-1")
        response.headers["Cache-Control"] = _FOREVER if asked in _digests().values() else _ASK
        return response


@cache
def _digests() -> Mapping[str, str]:
    """File name -> some digits of the digest of its content."""
    return {
        each.name: hashlib.sha256(each.read_bytes()).hexdigest()[:12] for each in STATIC.iterdir() if each.is_file()
    }
