"""Points of repositories that are registered no more, in the collections that this installation uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from reposync.clock import elapsed_seconds
from reposync.runs.execution import Terms
from reposync.store.leftovers import begin_leftover_removal, ever_known
from reposync.store.repository import MAX_NAME_CHARS
from reposync.store.run import Run

if TYPE_CHECKING:
    from reposync.app.application import Application


@dataclass(frozen=True, slots=True)
class Leftover:
    """`repository_id` None: points that name no repository, which reposync never wrote. `known`: this database had runs
    of it. Otherwise it may be another installation's, which keeps it in the same collection."""

    collection: str
    repository_id: str | None
    repository: str | None
    points: int
    known: bool


async def find_leftovers(app: Application) -> list[Leftover]:
    """By collection, then name. Raises what index and store raise."""
    found = []
    for collection in sorted(await app.collections()):
        index = app.index(collection)
        if await index.spec() is None:
            continue
        points = await index.repositories()
        nameless = await index.count() - sum(points.values())
        # Asked last: who registers in between has no points before.
        versions = await app.versions.all()
        registered = {row.id for row in await app.repositories.list()}
        registered |= {version.id for each in versions.values() for version in each}
        unknown = [identity for identity in points if identity not in registered]
        known = await ever_known(app.database, unknown)
        for identity in unknown:
            left = await index.count(identity)
            if not left:
                continue  # it was removed just now
            name = known.get(identity) or next(iter(await index.names_of(identity)), None)
            found.append(Leftover(collection, identity, name, left, identity in known))
        if nameless > 0:
            found.append(Leftover(collection, None, None, nameless, False))
    return sorted(found, key=lambda each: (each.collection, each.repository or "", each.repository_id or ""))


async def remove_leftover(app: Application, identity: str, name: str) -> Run | None:
    """Remove it from all collections, in a run of its own; the run as it ended. None where it is registered again, or
    another run of it is under way. Raises LeaseLost, StoreUnavailable, CancelledError."""
    asked, terms = elapsed_seconds(), Terms()
    worker = app.presence.name
    run = await begin_leftover_removal(app.database, identity, name[:MAX_NAME_CHARS], worker, terms.lease_seconds)
    if run is None:
        return None
    return await app.execute(app.execution(run, terms, claimed_since=asked), None, lambda _: None)
