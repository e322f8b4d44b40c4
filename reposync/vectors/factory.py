"""Opens an index from its settings."""

from __future__ import annotations

import httpx

from reposync.vectors.client import open_client, place
from reposync.vectors.embedded import START_SECONDS
from reposync.vectors.failures import Patience
from reposync.vectors.index import QdrantIndex
from reposync.vectors.settings import IndexSettings


def open_index(settings: IndexSettings, *, transport: httpx.AsyncBaseTransport | None = None) -> QdrantIndex:
    """Connects at the first request. `transport` takes the place of the connection. Raises ConfigError."""
    within = START_SECONDS if settings.url is None else None
    patience = Patience(place(settings), settings.attempts, settings.longest_wait_seconds, within)
    return QdrantIndex(open_client(settings, transport=transport), settings, patience)
