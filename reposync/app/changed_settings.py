"""Repositories whose settings have changed are rebuilt at once, not at their next tick."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from reposync.app.application import Application
from reposync.embedding.port import EmbeddingSpec
from reposync.errors import RepoSyncError
from reposync.store.repository import Repository
from reposync.store.status import RunTrigger
from reposync.store.tables import IndexVersion, VersionState
from reposync.store.versions import IndexHold
from reposync.sync.index_versions import VersionSettings

log = logging.getLogger(__name__)


async def queue_changed(app: Application) -> int:
    """Queue a run of each scheduled repository whose live version was built with different settings than are
    configured. Returns how many. Raises StoreUnavailable."""
    versions = await app.versions.all()
    lives = {each.repository_id: each for mine in versions.values() for each in mine if each.state is VersionState.LIVE}
    spec = await _configured_spec(app, lives.values())
    queued = 0
    for row in await app.repositories.list():
        live = lives.get(row.id)
        if live is None or row.cron_expression is None or not row.is_active:
            continue
        try:
            changed = _has_changed(app, row, live, spec)
        except RepoSyncError:  # it left the registry, or its definition is invalid: its next run says so
            continue
        if changed:
            await app.runs.enqueue(row.name, RunTrigger.SCHEDULE, asked_by="changed settings")
            queued += 1
    return queued


async def _configured_spec(app: Application, lives: Iterable[IndexVersion]) -> EmbeddingSpec | None:
    """None if the embedding server does not answer."""
    known = (made.spec for live in lives if (made := VersionSettings.read(live.settings)) is not None)
    try:
        return await app.embedder().spec(next(known, None))
    except RepoSyncError as error:
        log.warning("cannot find out whether the embedding model has changed: %s", error)
        return None


def _has_changed(app: Application, row: Repository, live: IndexVersion, spec: EmbeddingSpec | None) -> bool:
    made = VersionSettings.read(live.settings)
    if made is None or (row.index_hold is not None and IndexHold.read(row.index_hold).settings_key is None):
        return False
    target = app.catalog.of_row(row)
    settings = target.settings()
    same_place = (live.collection, made.branch) == (target.repository.collection, settings.branch)
    return not same_place or made.content != settings.content or (spec is not None and made.spec != spec)
