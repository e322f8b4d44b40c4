"""What a person who signed in has of their own: what they see, the tokens that they made, the agents they let in."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request, Response

from reposync.api.auth import Principal, opened_of, reader_of
from reposync.api.explaining import explained, explained_for
from reposync.api.people import People
from reposync.api.routing import ApiParts, Router
from reposync.api.web.rendering import Page
from reposync.app.access_reasons import Explained
from reposync.app.sign_in import MAX_PERSONAL, New, Opened
from reposync.errors import ReaderRefused, RepositoryNotFound, RepoSyncError, UsageError
from reposync.operations.core import Actor, Rule
from reposync.operations.fields import MAX_NAME_CHARS
from reposync.store.status import CredentialKind

log = logging.getLogger(__name__)

ACCESS_PATH, TOKENS_PATH = "/access", "/access/tokens"
MAX_DAYS = 365
DAYS = (30, 90, 365)
_MAX_NAME_CHARS = 100
_DAY_SECONDS = 86_400.0
_LISTED = (CredentialKind.PERSONAL, CredentialKind.ACCESS, CredentialKind.REFRESH)


class NoPerson(RepoSyncError, code="FORBIDDEN", status=403):
    """Only a person who signed in at GitLab, in a browser, has what the page is about."""

    def __init__(self) -> None:
        super().__init__("This page is for people who signed in at GitLab.", remedy="Log out, and sign in there.")


@dataclass(frozen=True, slots=True)
class Shown:
    """A token, or an agent with all tokens that it got by one authorization."""

    family: str
    name: str
    is_agent: bool
    created_at: datetime
    expires_at: datetime
    last_used_at: datetime | None


def session_of(request: Request) -> Opened:
    """Raises NoPerson: a token must not make tokens that outlive it."""
    opened = opened_of(request)
    if opened is None or opened.kind is not CredentialKind.SESSION:
        raise NoPerson
    return opened


def own_pages(parts: ApiParts, people: People) -> APIRouter:
    """`GET /access`: what the person may see, and why; with `name`, whether that repository is among it. `POST` there
    by an administrator, with `token`: the same of a different person, whose token of GitLab that is.
    `GET /access/tokens`; `POST` there with `name` and `days`, whose answer is the only one with the new token; and
    `POST /access/tokens/revoke` with `family`."""
    routes = Router(include_in_schema=False)
    reader, administrator = parts.access.page(), parts.access.page(Rule.OPERATE)
    root = parts.access.config.root_path
    sign_ins = people.sign_ins

    async def shown(request: Request, principal: Principal, **values: Any) -> Response:
        listed = _families(await sign_ins.own(session_of(request), *_LISTED))
        common = {"secret": None, "problem": None, "days": DAYS, "given": {"name": "", "days": str(DAYS[1])}} | values
        return Page(parts, request, principal).show("tokens.html", tokens=listed, **common)

    async def access_page(
        request: Request,
        principal: Principal,
        found: Explained | None = None,
        whose: Actor | None = None,
        *,
        asked: str = "",
        problem: str | None = None,
    ) -> Response:
        """`found`: what `whose` sees; None: nothing but the form of an administrator."""
        names = await parts.application().names.read()
        reasons = {} if found is None else found.reasons
        shown = {names[identity]: why for identity, why in reasons.items() if identity in names}
        asked, answer = asked.strip()[:MAX_NAME_CHARS], None
        if asked and asked not in shown and whose is not None:
            try:
                # Whatever is hidden does not exist there, so both have the same answer.
                await parts.application().limited(whose.visible).repositories.get(asked)
            except RepositoryNotFound as error:
                answer = str(error)
        return Page(parts, request, principal).show(
            "access.html",
            shown=shown,
            total=len(names),
            found=found,
            whose=None if whose is None or whose is principal else whose.name,
            gitlab=people.gitlab,
            asked=asked,
            answer=answer,
            problem=problem,
            is_administrator=principal.may(Rule.OPERATE),
        )

    @routes.get(ACCESS_PATH)
    async def seen(request: Request, principal: Principal = reader) -> Response:
        is_person = opened_of(request) is not None
        if is_person:
            session_of(request)
        elif not principal.may(Rule.OPERATE):
            raise NoPerson
        found = await explained(parts, request)
        if found is None:
            return await access_page(request, principal)
        return await access_page(request, principal, found, principal, asked=request.query_params.get("name", ""))

    @routes.post(ACCESS_PATH)
    async def seen_by_another(request: Request, principal: Principal = administrator) -> Response:
        """The token is asked with once, and kept nowhere."""
        token = str((await request.form()).get("token", "")).strip()
        address = request.client.host if request.client else ""
        try:
            sight = await people.readers.sight(token, address=address)
        except ReaderRefused as error:
            return await access_page(request, principal, problem=str(error))
        other = reader_of(sight)
        log.info("the access of a person was looked at", extra={"user": other.name, "by": principal.name})
        return await access_page(request, principal, await explained_for(parts.access, token, sight), other)

    @routes.get(TOKENS_PATH)
    async def tokens(request: Request, principal: Principal = reader) -> Response:
        return await shown(request, principal)

    @routes.post(TOKENS_PATH)
    async def make(request: Request, principal: Principal = reader) -> Response:
        opened, form = session_of(request), await request.form()
        name, days = str(form.get("name", "")).strip(), str(form.get("days", ""))
        try:
            seconds = await _checked(people, opened, name, days)
        except UsageError as error:
            return await shown(request, principal, problem=str(error), given={"name": name, "days": days})
        made = await sign_ins.issue(opened, New({CredentialKind.PERSONAL: seconds}, name))
        return await shown(request, principal, secret=made[CredentialKind.PERSONAL])

    @routes.post(f"{TOKENS_PATH}/revoke")
    async def revoke(request: Request, principal: Principal = reader) -> Response:
        form = await request.form()
        await sign_ins.end_own(session_of(request), str(form.get("family", ""))[:_MAX_NAME_CHARS])
        return Response(status_code=303, headers={"Location": f"{root}{TOKENS_PATH}?done=revoked"})

    return routes


async def _checked(people: People, opened: Opened, name: str, days: str) -> float:
    """For how many seconds the token is asked for. Raises UsageError."""
    if not 0 < len(name) <= _MAX_NAME_CHARS or not name.isprintable():
        raise UsageError(f"Give it a name of at most {_MAX_NAME_CHARS} characters.")
    if not (days.isascii() and days.isdigit() and len(days) < 5 and 1 <= int(days) <= MAX_DAYS):
        raise UsageError(f"It may be valid for 1 to {MAX_DAYS} days.")
    if len(await people.sign_ins.own(opened, CredentialKind.PERSONAL)) >= MAX_PERSONAL:
        raise UsageError(f"You have {MAX_PERSONAL} tokens, which is the most: revoke one first.")
    return int(days) * _DAY_SECONDS


def _families(credentials: Iterable[Any]) -> list[Shown]:
    families = dict[str, list[Any]]()
    for credential in credentials:
        families.setdefault(credential.family, []).append(credential)
    found = [
        Shown(
            family,
            next((row.name for row in rows if row.name), ""),
            rows[0].kind != CredentialKind.PERSONAL,
            min(row.created_at for row in rows),
            max(row.expires_at for row in rows),
            max((row.last_used_at for row in rows if row.last_used_at is not None), default=None),
        )
        for family, rows in families.items()
    ]
    return sorted(found, key=lambda each: each.created_at, reverse=True)
