"""Repositories whose settings have changed are rebuilt at once, and not when their schedule comes round."""

from __future__ import annotations

import logging

from reposync.errors import RepoSyncError, StoreUnavailable
from reposync.scheduling.application import Application
from reposync.store.repositories import Repository
from reposync.store.status import RunTrigger
from reposync.store.versions import Hold, IndexVersion, VersionState
from reposync.sync.versions import VersionSettings

log = logging.getLogger(__name__)


async def queue_changed(app: Application) -> int:
    """Queue a run of each scheduled repository whose live version was made with other settings than are configured; how
    many. A run that waits already is enough. Raises StoreUnavailable."""
    versions = await app.versions.all()
    queued = 0
    for row in await app.repositories.list():
        live = next((each for each in versions.get(row.id, ()) if each.state is VersionState.LIVE), None)
        if live is None or row.cron_expression is None or not row.is_active:
            continue
        try:
            if await _has_changed(app, row, live):
                await app.runs.enqueue(row.name, RunTrigger.SCHEDULE)
                queued += 1
        except StoreUnavailable:
            raise
        except RepoSyncError as error:  # its next run says so
            log.warning("whether the settings of %s have changed is not known: %s", row.name, error)
    return queued


async def _has_changed(app: Application, row: Repository, live: IndexVersion) -> bool:
    made = VersionSettings.read(live.settings)
    if made is None or (row.index_hold is not None and Hold(**row.index_hold).settings_key is None):
        return False
    target = app.catalog.of_row(row)
    settings = target.settings()
    same_place = (live.collection, made.branch) == (target.repository.collection, settings.branch)
    return not same_place or made.content != settings.content or made.spec != await app.embedder().spec(made.spec)
