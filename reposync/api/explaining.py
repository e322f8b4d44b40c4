"""Why GitLab shows the sender of a request each repository: asked with the sender's own token."""

from __future__ import annotations

from fastapi import Request

from reposync.api.auth import Access, opened_of, seen_by
from reposync.api.routing import ApiParts
from reposync.app.access_reasons import Explained
from reposync.app.gitlab_access import JobSight, Sight
from reposync.errors import ReaderRefused, RightsUnavailable
from reposync.operations.access import Explain


def explaining(parts: ApiParts, request: Request) -> Explain:
    async def explain() -> tuple[Explained, int] | None:
        found = await explained(parts, request)
        # Also of those that the sender does not see: nothing but how many.
        return None if found is None else (found, len(await parts.application().names.read()))

    return explain


async def explained(parts: ApiParts, request: Request) -> Explained | None:
    """None for a sender whom GitLab does not know, as one with a service token."""
    access, seen = parts.access, seen_by(request)
    if access.readers is None or seen is None:
        return None
    token, sight = seen
    if isinstance(sight, JobSight):
        catalogue = await access.readers.catalogue()
        return Explained.of_job(access.readers.url, sight, catalogue, parts.application().now())
    opened = opened_of(request)
    if opened is None or access.people is None:
        return await explained_for(access, token, sight)
    standings = await access.people.standings(opened, sight)
    return Explained.of_reader(access.readers.url, sight, await access.readers.catalogue(), standings)


async def explained_for(access: Access, token: str, sight: Sight) -> Explained:
    """For the owner of this token of GitLab."""
    assert access.readers is not None  # noqa: S101 - for the type checker
    try:
        standings = await access.readers.standings(token, sight)
    except (ReaderRefused, RightsUnavailable):
        standings = None
    return Explained.of_reader(access.readers.url, sight, await access.readers.catalogue(), standings)
