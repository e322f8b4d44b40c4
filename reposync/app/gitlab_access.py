"""What readers see of the catalogue, by GitLab's answer about their projects."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reposync.access.changes import RightsChange
from reposync.access.gitlab import GitLabRights, Standing
from reposync.access.readers import MAX_READERS, Reader, Readers, Wanted
from reposync.app.application import Application
from reposync.catalog.targets import server_at
from reposync.clock import Clock, elapsed_seconds
from reposync.config.gitlab_instance import GitLabInstance
from reposync.config.registry import Registry
from reposync.config.sections import RightsConfig
from reposync.errors import ReaderRefused
from reposync.store.database import Database
from reposync.store.repositories import RepositoryPlace
from reposync.visible import Visible

if TYPE_CHECKING:
    from reposync.access.job_tokens import Job, JobTokens

CATALOGUE_SECONDS = 1.0
"""How long a repository that was registered is not asked about."""
EVERYBODY, PROJECT = "everybody", "project:"


@dataclass(frozen=True, slots=True)
class Sight:
    """`visible`: the repositories that exist for the reader; `maintains`: those whose project they maintain."""

    reader: Reader
    visible: Visible
    maintains: Visible


@dataclass(frozen=True, slots=True)
class CatalogueRights:
    """Who may read which repository. `projects`: ids of repositories by the number of their project on the server that
    decides; a repository whose number is not known yet is in none. `readers`: ids by what their definitions name, for
    those that are no projects of a GitLab server. `jobs`: ids by lower-case paths of projects whose jobs see them."""

    projects: dict[int, frozenset[str]]
    readers: dict[str, frozenset[str]]
    jobs: dict[str, frozenset[str]]
    wanted: Wanted

    @classmethod
    def of(cls, places: Iterable[RepositoryPlace], registry: Registry, url: str) -> CatalogueRights:
        projects = defaultdict[int, set[str]](set)
        readers, jobs = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
        for place in places:
            is_gitlab = place.source == "gitlab"
            if is_gitlab and place.project_id is not None and server_at(registry, place.location) == url:
                projects[place.project_id].add(place.id)
            for word in place.readers:
                if word.startswith(PROJECT):
                    jobs[word.removeprefix(PROJECT).lower()].add(place.id)
                elif not is_gitlab:
                    readers[word].add(place.id)
        return cls(
            {number: frozenset(ids) for number, ids in projects.items()},
            {word: frozenset(ids) for word, ids in readers.items()},
            {path: frozenset(ids) for path, ids in jobs.items()},
            Wanted(frozenset(projects), frozenset(readers) - {EVERYBODY}),
        )

    def sight(self, reader: Reader) -> Sight:
        visible = [self.projects[number] for number in reader.readable if number in self.projects]
        visible += [self.readers[word] for word in (*reader.groups, EVERYBODY) if word in self.readers]
        maintained = [self.projects[number] for number in reader.maintained if number in self.projects]
        return Sight(reader, Visible(frozenset().union(*visible)), Visible(frozenset().union(*maintained)))


@dataclass(frozen=True, slots=True)
class JobSight:
    """`visible`: the repository of the job's project, and those whose definitions name that project."""

    job: Job
    visible: Visible


class GitLabAccess:
    """The access by GitLab's rights, one for a daemon. `audience`: what pipelines name as `aud`; None: no job is let
    in. `application` may raise Starting. Changes are heard from all daemons of the same database."""

    def __init__(
        self,
        server: GitLabInstance,
        config: RightsConfig,
        application: Callable[[], Application],
        *,
        audience: str | None = None,
        clock: Clock | None = None,
        elapsed: Callable[[], float] = elapsed_seconds,
    ) -> None:
        """Opens no connection."""
        self.url = server.url
        self._audience = audience
        self._application = application
        self._elapsed = elapsed
        self._rights = GitLabRights(server)
        self._jobs: JobTokens | None = None
        self._readers = Readers(
            self._rights,
            fresh_seconds=config.fresh_seconds,
            away_seconds=config.away_seconds,
            clock=clock,
            elapsed=elapsed,
        )
        self._heard_from: Database | None = None
        self._catalogue: CatalogueRights | None = None
        self._read_at = float("-inf")
        self._reading: asyncio.Task[CatalogueRights] | None = None
        self._sights: OrderedDict[int, tuple[Reader, CatalogueRights, Sight]] = OrderedDict()

    async def sight(self, token: str, *, address: str | None = None) -> Sight:
        """What the owner of GitLab's token sees; `address`: see `Readers.reader`. Raises ReaderRefused,
        TooManyUnknownTokens, RightsUnavailable, StoreUnavailable."""
        catalogue = await self.catalogue()
        reader = await self._readers.reader(token, catalogue.wanted, address=address)
        # The same object as long as nothing changes: it is a parameter of queries.
        kept = self._sights.get(id(reader))
        if kept is not None and kept[0] is reader and kept[1] is catalogue:
            return kept[2]
        sight = catalogue.sight(reader)
        self._sights[id(reader)] = (reader, catalogue, sight)
        while len(self._sights) > MAX_READERS:
            self._sights.popitem(last=False)
        return sight

    async def standings(self, token: str, sight: Sight) -> dict[str, Standing]:
        """Why GitLab shows the owner of the token each repository that is a project of it, by id: asked now. Raises
        ReaderRefused, RightsUnavailable, StoreUnavailable."""
        catalogue, reader = await self.catalogue(), sight.reader
        shown = reader.readable & catalogue.projects.keys()
        found = await self._rights.standings(token, reader.user_id, shown)
        return {identity: found[number] for number in shown & found.keys() for identity in catalogue.projects[number]}

    async def job_sight(self, token: str) -> JobSight:
        """What a job sees, by the token that GitLab signed for it. Raises ReaderRefused, RightsUnavailable,
        StoreUnavailable."""
        if self._audience is None:
            raise ReaderRefused("Tokens of jobs are for `http.public_url`, which is not set here.")
        if self._jobs is None:
            # It takes 50 ms to import, and most daemons see no job.
            from reposync.access.job_tokens import JobTokens

            self._jobs = JobTokens(
                self._rights.http,
                audience=self._audience,
                now=lambda: self._application().now(),
                elapsed=self._elapsed,
            )
        job, catalogue = await self._jobs.verify(token), await self.catalogue()
        own = catalogue.projects.get(job.project_id, frozenset())
        return JobSight(job, Visible(own | catalogue.jobs.get(job.project_path.lower(), frozenset())))

    async def catalogue(self) -> CatalogueRights:
        """At most CATALOGUE_SECONDS old. Raises StoreUnavailable."""
        app = self._application()
        if self._heard_from is not app.database:
            self._heard_from = app.database
            app.database.hear(lambda text: self._readers.drop(RightsChange.of_text(text)))
        if self._catalogue is not None and self._elapsed() - self._read_at < CATALOGUE_SECONDS:
            return self._catalogue
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self._read(app))
        return await asyncio.shield(self._reading)

    async def change(self, change: RightsChange) -> None:
        """Drop the answers that the change outdates, on every pod. Raises StoreUnavailable if only this one did."""
        self._readers.drop(change)
        await self._application().database.tell(change.text)

    async def close(self) -> None:
        await self._readers.close()
        await self._rights.close()

    async def _read(self, app: Application) -> CatalogueRights:
        began, places = self._elapsed(), await app.repositories.places()
        found = CatalogueRights.of(places, app.configuration.registry, self.url)
        # The same object if nothing changed.
        self._catalogue = catalogue = self._catalogue if found == self._catalogue and self._catalogue else found
        self._read_at = began
        return catalogue


def is_job_token(token: str) -> bool:
    """Whether it has the form of a signed token: three parts, of which the first is a JSON object in base64. GitLab's
    own tokens never begin so."""
    return token.startswith("eyJ") and token.count(".") == 2
