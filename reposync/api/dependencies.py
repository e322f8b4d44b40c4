"""What the routes are built from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from reposync.api.auth import Access
from reposync.app.application import Application
from reposync.telemetry.health import Health
from reposync.telemetry.metrics import Metrics
from reposync.telemetry.redaction import Secrets


@dataclass(frozen=True, slots=True)
class ApiParts:
    """`refresh` sets those gauges of `metrics` that only the database knows; it may fail, and is cancelled if it takes
    longer than a scrape may. `application` raises Starting, and StoreUnavailable while the daemon waits for its
    database.
    """

    health: Health
    metrics: Metrics
    refresh: Callable[[], Awaitable[None]]
    version: str
    application: Callable[[], Application]
    access: Access
    secrets: Secrets = field(default_factory=Secrets.of_environment)
