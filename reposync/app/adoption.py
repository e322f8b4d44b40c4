"""A project that was deleted and created again: its repository continues with the new project's number."""

from __future__ import annotations

from reposync.app.application import Application
from reposync.errors import RepositoryReadOnly, UsageError
from reposync.sources.port import GitLabProject
from reposync.store.repository import Repository


async def adopt_project(app: Application, name: str) -> tuple[int, Repository]:
    """The former number, and the repository with that of the project that is at its path now. The index stays until a
    run has built the new one, with the deletion brake.

    Raises SourceGone if there is no project at that path, UsageError if the recorded one exists, RepositoryNotFound,
    RepositoryReadOnly for a project of a group, RepositoryChanged, and what a source raises.
    """
    from reposync.sources.gitlab import GitLabSource  # python-gitlab takes 0.15 s to import

    row = await app.repositories.get(name)
    if row.group_key is not None:
        raise RepositoryReadOnly(
            f"{row.name!r} belongs to the group {row.group_key}.",
            remedy="The group's next listing registers the project that is at its path now.",
        )
    spec = app.catalog.of_row(row).source()
    if not isinstance(spec, GitLabProject) or spec.project_id is None:
        raise UsageError(f"{row.name!r} has no recorded project number: there is nothing to adopt.")
    source = GitLabSource(spec, observer=app.observer)
    try:
        number = await source.successor()
    finally:
        await source.close()
    return spec.project_id, await app.repositories.adopt(row.name, number, expected=row)
