"""A search over the live versions of all repositories' indexes, whatever becomes live while it is going on."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from reposync.embedding.port import EmbeddingSpec
from reposync.errors import EmbeddingError, UsageError
from reposync.store.versions import Served, VersionState
from reposync.sync.search import checked_text, make_query, search_collections
from reposync.vectors.port import SearchHit, SearchQuery

if TYPE_CHECKING:
    from reposync.scheduling.application import Application

log = logging.getLogger(__name__)

# How often a search is repeated because a version became live or was retired meanwhile. Each takes milliseconds.
_TRIES = 10


class Searching:
    def __init__(self, app: Application) -> None:
        self._app = app

    async def search(
        self,
        text: str,
        *,
        repository: str | None = None,
        path_glob: str | None = None,
        language: str | None = None,
        limit: int = 10,
        version: Literal["live", "building"] = "live",
    ) -> list[SearchHit]:
        """Best first. `version`: the one of `repository` that is being built, in place of what is live.

        Raises RepositoryNotFound, UsageError, and what index, embedder and store raise."""
        text = checked_text(text)
        for _ in range(_TRIES):
            served = await self._app.versions.served()
            place = None if repository is None else await self._place(repository, version)
            collections = [place[0]] if place is not None else sorted(served.collections)
            found = {}
            for name in collections:
                index = self._app.index(name)
                spec = await index.spec()
                if spec is None:
                    continue
                # What a program before 0.2 synced is known by the name alone, which may lead to one of the others.
                behind = await index.behind() if len(collections) > 1 else None
                physical = behind.physical if behind is not None else name
                if physical not in found:
                    query = await self._query(text, spec, path_glob, language, limit)
                    found[physical] = index, _within(query, place, served, physical)
            hits = await search_collections(list(found.values()), limit)
            # A version that was retired meanwhile may have lost its points before they were read.
            if await self._app.versions.served() == served:
                break
        if not found:
            raise UsageError("Nothing is indexed yet.", remedy="`reposync sync .` indexes the repository you are in.")
        outdated = await self._app.manifests.outdated([(hit.version, hit.path) for hit in hits])
        return [replace(hit, outdated=(hit.version, hit.path) in outdated) for hit in hits]

    async def _place(self, repository: str, version: str) -> tuple[str, str]:
        """(physical collection, version id)."""
        row = await self._app.repositories.get(repository)
        versions = await self._app.versions.of(row.id)
        for each in versions:
            if each.state is VersionState(version):
                return each.physical, each.id
        if versions or row.last_sync_at is None:
            raise UsageError(
                f"Nothing of {repository!r} is indexed yet.", remedy=f"`reposync sync {repository}` indexes it."
            )
        return row.indexed_collection or row.collection, row.id

    async def _query(
        self, text: str, spec: EmbeddingSpec, path_glob: str | None, language: str | None, limit: int
    ) -> SearchQuery:
        """By the model that the collection was made with. If that is not configured any more and cannot be asked, words
        alone have to do until the repositories are live on the configured one."""
        former = await self._is_former(spec)
        embedder = self._app.embedder_for(spec) if former else self._app.embedder()
        try:
            if embedder is not None and (not former or await embedder.spec(spec) == spec):
                return await make_query(embedder, spec, text, path_glob, language, limit)
        except EmbeddingError as error:
            if not former:
                raise
            log.warning("the model of an index, %s, cannot be asked any more: %s", spec.model, error)
        return await make_query(None, spec, text, path_glob, language, limit)

    async def _is_former(self, spec: EmbeddingSpec) -> bool:
        return await self._app.embedder().spec(spec) != spec


def _within(query: SearchQuery, place: tuple[str, str] | None, served: Served, physical: str) -> SearchQuery:
    if place is not None:
        return replace(query, version=place[1])
    return replace(query, hidden=sorted(served.hidden.get(physical, ())))
