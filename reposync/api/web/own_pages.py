"""What a person who signed in has of their own: what they see, the tokens that they made, the agents they let in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request, Response

from reposync.access.gitlab import GUEST, Standing
from reposync.api.auth import Principal, opened_of, sight_of
from reposync.api.people import People
from reposync.api.routing import ApiParts, Router
from reposync.api.web.rendering import Page
from reposync.app.gitlab_access import EVERYBODY, CatalogueRights, Sight
from reposync.app.sign_in import MAX_PERSONAL, New, Opened
from reposync.errors import RepositoryNotFound, RepoSyncError, UsageError
from reposync.operations.fields import MAX_NAME_CHARS
from reposync.store.status import CredentialKind

ACCESS_PATH, TOKENS_PATH = "/access", "/access/tokens"
MAX_DAYS = 365
DAYS = (30, 90, 365)
REPORTER = 20
"""The lowest level whose members read the code whatever the visibility is."""
ROLES = {
    GUEST: "Guest",
    15: "Planner",
    REPORTER: "Reporter",
    25: "Security Manager",
    30: "Developer",
    40: "Maintainer",
    50: "Owner",
}
"""By their levels (lib/gitlab/access.rb)."""
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
    """`GET /access`: what the person may see, and why; with `name`, whether that repository is among it.
    `GET /access/tokens`; `POST` there with `name` and `days`, whose answer is the only one with the new token; and
    `POST /access/tokens/revoke` with `family`."""
    routes = Router(include_in_schema=False)
    reader, root = parts.access.page(), parts.access.config.root_path
    sign_ins = people.sign_ins

    async def shown(request: Request, principal: Principal, **values: Any) -> Response:
        listed = _families(await sign_ins.own(session_of(request), *_LISTED))
        common = {"secret": None, "problem": None, "days": DAYS, "given": {"name": "", "days": str(DAYS[1])}} | values
        return Page(parts, request, principal).show("tokens.html", tokens=listed, **common)

    @routes.get(ACCESS_PATH)
    async def seen(request: Request, principal: Principal = reader) -> Response:
        session_of(request)
        sight, catalogue = sight_of(request), await people.readers.catalogue()
        if sight is None:
            raise NoPerson
        app = parts.application()
        names, standings = await app.names.read(), await people.standings(session_of(request), sight)
        reasons = _reasons(sight, catalogue, standings or {})
        shown = {names[identity]: reasons[identity] for identity in reasons if identity in names}
        asked, problem = request.query_params.get("name", "").strip()[:MAX_NAME_CHARS], None
        if asked and asked not in shown:
            try:
                # Whatever is hidden does not exist there, so both have the same answer.
                await app.limited(sight.visible).repositories.get(asked)
            except RepositoryNotFound as error:
                problem = str(error)
        return Page(parts, request, principal).show(
            "access.html",
            shown=shown,
            total=len(names),
            as_of=sight.reader.as_of,
            gitlab=people.gitlab,
            is_explained=standings is not None,
            asked=asked,
            problem=problem,
        )

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


def _reasons(sight: Sight, catalogue: CatalogueRights, standings: Mapping[str, Standing]) -> dict[str, str]:
    """Why the person sees each repository, by its id; as far as GitLab says it."""
    shown = sight.visible.ids or frozenset[str]()
    found = dict[str, str]()
    for word in (*sorted(sight.reader.groups), EVERYBODY):
        why = "its readers are everybody" if word == EVERYBODY else f"you are a member of {word}"
        found |= dict.fromkeys(catalogue.readers.get(word, ()), f"{why} (`readers` of the registry)")
    for number in sight.reader.readable:
        why = "you maintain the project in GitLab" if number in sight.reader.maintained else "GitLab shows you its code"
        found |= {identity: _why(standings.get(identity), why) for identity in catalogue.projects.get(number, ())}
    return {identity: found.get(identity, "") for identity in shown}


def _why(standing: Standing | None, otherwise: str) -> str:
    """`otherwise`: as for an administrator, who is no member of a private project."""
    if standing is None:
        return otherwise
    member = f"member: {ROLES.get(standing.level, f'level {standing.level}')}" if standing.level >= GUEST else ""
    if standing.visibility == "private" or standing.level >= REPORTER:
        return member or otherwise
    # Below the role of a reporter, the visibility may have decided, or both together.
    return f"{standing.visibility}, {member}" if member else standing.visibility


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
