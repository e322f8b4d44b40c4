"""Everything that a daemon needs, checked once for a person: what the periodic health checks ask, and what only
somebody who is about to start one wants to know."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from reposync.app.application import Application
from reposync.app.gitlab_account import NEEDED_SCOPES, Account, GitLabAccount
from reposync.app.health_checks import LONGEST_SKEW_SECONDS, Check, HealthChecks, problem_or
from reposync.app.opening import application_of
from reposync.catalog.apply import registry_in_force
from reposync.clock import Clock
from reposync.config.database_url import SqliteAddress, parse_address
from reposync.config.document import RegistryErrors
from reposync.config.gitlab_instance import GitLabInstance
from reposync.config.loading import LoadedRegistry
from reposync.config.registry import Registry
from reposync.config.settings import Configuration, Settings
from reposync.errors import ClockSkewed, ConfigError, RepoSyncError, SourceDenied, SourceUnavailable
from reposync.http_client import ErrorKinds, HttpClient, HttpRefused, TransientFailure
from reposync.next_steps import ApplyRegistry, CheckRegistry, UpgradeDatabase
from reposync.outgoing import Timeouts, origin, parse_json
from reposync.runs.reporting import Observer
from reposync.store.database import Database
from reposync.store.registry import RegistryDocuments
from reposync.store.schema import Schema
from reposync.store.sqlite import LOCK_SECONDS
from reposync.supervision import in_thread, together
from reposync.telemetry.health import Health
from reposync.telemetry.redaction import Secrets

T = TypeVar("T")
Status = Literal["ok", "warning", "failed", "skipped"]

LIMIT_SECONDS = 10.0
"""The time limit of each check; all but those of the database run at the same time."""
SOON_DAYS = 14
LITTLE_SPACE_BYTES, NO_SPACE_BYTES = 2**30, 2**27
_PROBE = "where are expired sessions removed"
_MAX_ANSWER_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class Finding:
    """One line for a person. `problem`: why it is not `ok`, with what to do about it."""

    check: str
    status: Status
    message: str
    problem: RepoSyncError | None = None

    @classmethod
    def of(cls, check: str, problem: RepoSyncError, status: Status = "failed") -> Finding:
        return cls(check, status, problem.message, problem)


class _Applied(NamedTuple):
    """What the database says is in force; `digest` is None if no file was applied."""

    registry: Registry
    digest: str | None


@dataclass
class Diagnosis:
    """`loaded`: the registry file, or why it cannot be used. `host`, `port`: where `serve` would listen. `daemon_url`:
    of the daemon that serves this state folder."""

    settings: Settings
    loaded: LoadedRegistry | ConfigError
    host: str
    port: int
    daemon_url: str | None
    limit_seconds: float = LIMIT_SECONDS
    secrets: Secrets = field(default_factory=Secrets.of_environment)
    _accounts: list[Account] = field(default_factory=list)

    async def run(self) -> list[Finding]:
        """In the order in which a person repairs them."""
        async with contextlib.AsyncExitStack() as resources:
            database = Database(parse_address(self.settings.database_url), LOCK_SECONDS, Clock())
            resources.push_async_callback(database.close)
            found, applied = await self._database(database)
            configuration = Configuration(self.settings, self._registry_to_check(applied))
            self.secrets.know(configuration.secrets())
            app = application_of(configuration, database, Observer(), self.secrets, resources)
            others = await together(
                *self._health(app, is_usable=applied is not None),
                in_thread(self._state_folder),
                self._http(),
                self._webhooks(app),
            )
            file = self._file(applied)
        clock = [] if database.clock.is_measured and applied is not None else [self._clock()]
        order = ("state", "redis", "qdrant", "embedding", "gitlab", "clock", "queue", "http", "webhooks")
        return [file, found, *sorted([*others, *clock], key=lambda each: order.index(each.check.partition(":")[0]))]

    async def _limited(self, ask: Callable[[], Awaitable[T]]) -> T | RepoSyncError:
        return await problem_or(ask, self.limit_seconds, self.secrets)

    # Registry and database -------------------------------------------------------------------------------------------

    def _registry_to_check(self, applied: _Applied | None) -> Registry:
        """A daemon applies its file when it starts; without a valid one, what was applied counts."""
        if isinstance(self.loaded, LoadedRegistry) and self.loaded.path is not None:
            return self.loaded.registry
        return applied.registry if applied is not None else Registry()

    def _file(self, applied: _Applied | None) -> Finding:
        loaded = self.loaded
        if isinstance(loaded, RegistryErrors):
            first, *more = loaded.problems
            text = f"{first}{f', and {len(more)} more' if more else ''}"
            return Finding.of("registry", ConfigError(text, next_steps=[CheckRegistry()]))
        if isinstance(loaded, ConfigError):
            return Finding.of("registry", loaded)
        if loaded.path is None:
            remedy = "`reposync init` writes one. Repositories can also be added by command and over HTTP."
            return Finding.of("registry", ConfigError("There is no registry file.", remedy=remedy), "warning")
        registry = loaded.registry
        counts = [(len(registry.repositories), "repository", "repositories"), (len(registry.groups), "group", "groups")]
        text = " and ".join(f"{number} {one if number == 1 else many}" for number, one, many in counts if number)
        text = f"{text or 'no repository'} in {loaded.path}"
        if loaded.warnings:
            return Finding.of("registry", ConfigError(str(loaded.warnings[0])), "warning")
        if applied is not None and applied.digest != loaded.digest:
            problem = ConfigError(f"{text}, which is not applied", next_steps=[ApplyRegistry()])
            return Finding.of("registry", problem, "warning")
        return Finding("registry", "ok", text)

    async def _database(self, database: Database) -> tuple[Finding, _Applied | None]:
        """None: its tables cannot be read."""
        address = parse_address(self.settings.database_url)
        if isinstance(address, SqliteAddress) and not address.path.exists():
            remedy = "`reposync apply`, `sync` and `serve` make it."
            problem = RepoSyncError(f"There is none yet in {address.path}.", remedy=remedy)
            return Finding.of("database", problem, "warning"), None

        async def look() -> tuple[Schema, _Applied | None]:
            await database.clock.measure()
            await database.ping()
            schema = await database.schema()
            schema.require(database.where, complete=False)
            if schema.state in ("empty", "behind"):
                return schema, None
            current = await RegistryDocuments(database).current()
            digest = current.digest if current is not None else None
            return schema, _Applied(await registry_in_force(database), digest)

        answer = await self._limited(look)
        if isinstance(answer, RepoSyncError):
            return Finding.of("database", answer), None
        schema, applied = answer
        if applied is None:
            text = f"{database.where} has schema {schema.revision or 'none'}; `serve` upgrades it"
            waiting = RepoSyncError(text, next_steps=[UpgradeDatabase()])
            return Finding.of("database", waiting, "warning"), None
        where = database.where.removeprefix("in ")
        return Finding("database", "ok", f"{where}, writable, schema {schema.revision}"), applied

    # What the health checks of a daemon ask, and a little more -------------------------------------------------------

    def _health(self, app: Application, *, is_usable: bool) -> list[Awaitable[Finding]]:
        registry = app.configuration.registry
        more: dict[str, Callable[[], Awaitable[Finding]]] = {
            "qdrant": partial(self._qdrant, app),
            "embedding": partial(self._embedding, app),
        }
        more |= {f"gitlab:{server.name}": partial(self._gitlab, server) for server in registry.gitlab}

        async def finding(name: str, check: Check) -> Finding:
            answer = await self._limited(more.get(name, check.ask))
            title = "queue" if name == "waits" else name
            if isinstance(answer, RepoSyncError):
                if answer.remedy is None or isinstance(answer, SourceUnavailable):  # that one speaks of the next run
                    answer.remedy = _REMEDIES.get(name.partition(":")[0])
                return Finding.of(title, answer, "warning" if name in ("waits", "clock") else "failed")
            return answer if isinstance(answer, Finding) else Finding(title, "ok", _WELL[name])

        left_out = {"database"} if is_usable else {"database", "waits", "clock"}
        checks = HealthChecks(app, Health(), self.secrets).checks()
        return [finding(name, check) for name, check in checks.items() if name not in left_out]

    async def _qdrant(self, app: Application) -> Finding:
        index = app.index(app.configuration.registry.defaults.collection)
        await index.ping()
        version, url = await index.version() or "of unknown version", app.configuration.qdrant.url
        where = f"server {version} at {url}" if url else f"embedded engine {version}"
        return Finding("qdrant", "ok", where)

    async def _embedding(self, app: Application) -> Finding:
        embedder, loop = app.embedder(), asyncio.get_running_loop()
        began = loop.time()
        matrix = await embedder.embed_query(_PROBE)
        config = app.configuration.registry.embedding
        model = f"{config.provider} {config.model}" if config.model else config.provider
        took = f"{loop.time() - began:.1f} s"
        return Finding("embedding", "ok", f"{model}, {matrix.shape[1]} dimensions; a question took {took}")

    async def _gitlab(self, server: GitLabInstance) -> Finding:
        name = f"gitlab:{server.name}"
        async with GitLabAccount.of(server, timeout_seconds=self.limit_seconds) as connected:
            account = await connected.look()
        self._accounts.append(account)
        if server.token is None:
            remedy = "Set `token` for private projects."
            problem = RepoSyncError(f"{server.url}: no token, so only public projects are visible.", remedy=remedy)
            return Finding.of(name, problem, "warning")
        if account.missing_scopes:
            what = " and ".join(account.missing_scopes)
            remedy = f"Make a token with the scopes {' and '.join(NEEDED_SCOPES)}."
            return Finding.of(name, SourceDenied(f"The token for {server.url} lacks {what}.", remedy=remedy))
        text = f"{origin(server.url)}: {account.words()}"
        days = (account.last_day - datetime.now(UTC).date()).days if account.last_day else None
        if days is not None and days <= SOON_DAYS:
            remedy = "Make a new one and replace it: docs/rotate-a-token.md."
            problem = RepoSyncError(f"{text}: the token ends in {days} days.", remedy=remedy)
            return Finding.of(name, problem, "warning")
        return Finding(name, "ok", text)

    def _clock(self) -> Finding:
        """With SQLite there is one machine, and GitLab's clock is what to compare with."""
        times = [account.server_time for account in self._accounts if account.server_time is not None]
        if not times:
            return Finding("clock", "skipped", "not checked: no server said what time it is")
        skew = (datetime.now(UTC) - times[0]).total_seconds()
        if abs(skew) > LONGEST_SKEW_SECONDS:
            relation = "ahead of" if skew > 0 else "behind"
            text = f"This machine's clock is {abs(skew):,.0f} s {relation} GitLab's."
            return Finding.of("clock", ClockSkewed(text, remedy="Set it (NTP)."), "warning")
        return Finding("clock", "ok", "agrees with GitLab's")

    # This machine ----------------------------------------------------------------------------------------------------

    def _state_folder(self) -> Finding:
        folder = self.settings.state_dir
        existing = next((each for each in (folder, *folder.parents) if each.exists()), Path("/"))
        if not os.access(existing, os.W_OK | os.X_OK):
            remedy = "Change its owner, or set REPOSYNC_STATE_DIR to a different folder."
            return Finding.of("state", ConfigError(f"{existing} cannot be written by this user.", remedy=remedy))
        free = shutil.disk_usage(existing).free
        text = f"{folder}, {free / 1e9:,.1f} GB free"
        if free < LITTLE_SPACE_BYTES:
            problem = RepoSyncError(text, remedy="Make room: a full disk stops every sync.")
            return Finding.of("state", problem, "failed" if free < NO_SPACE_BYTES else "warning")
        return Finding("state", "ok", text)

    async def _http(self) -> Finding:
        if self.daemon_url is not None:
            if await self._is_reposync(self.daemon_url):
                return Finding("http", "ok", f"the daemon of this state folder answers at {self.daemon_url}")
            remedy = "Look at its log, or restart it."
            return Finding.of("http", RepoSyncError(f"{self.daemon_url} does not answer.", remedy=remedy))
        try:
            with socket.create_server(
                (self.host, self.port), family=socket.AF_INET6 if ":" in self.host else socket.AF_INET
            ):
                pass
        except OSError as error:
            asked = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host  # noqa: S104 - compared
            if await self._is_reposync(f"http://{f'[{asked}]' if ':' in asked else asked}:{self.port}"):
                return Finding("http", "ok", f"reposync answers at port {self.port}, with other settings")
            remedy = "Stop what uses it, or choose another: `reposync serve --port N`."
            text = f"{self.host}, port {self.port}: {error.strerror or error}."
            return Finding.of("http", RepoSyncError(text, remedy=remedy))
        return Finding("http", "ok", f"port {self.port} of {self.host} is free for `reposync serve`")

    async def _webhooks(self, app: Application) -> Finding:
        registry = app.configuration.registry
        if not any(server.webhook_secret or server.webhook_signing for server in registry.gitlab):
            return Finding("webhooks", "skipped", "not checked: none is set up (docs/webhooks.md)")
        url = registry.http.public_url
        if url is None:
            text = "not checked: `http.public_url` does not say where GitLab finds this daemon"
            return Finding("webhooks", "skipped", text)
        if await self._is_reposync(url):
            return Finding("webhooks", "ok", f"{url} answers as reposync")
        remedy = "Start the daemon, and check the proxy in front of it."
        return Finding.of("webhooks", RepoSyncError(f"{url} does not answer as reposync.", remedy=remedy), "warning")

    async def _is_reposync(self, url: str) -> bool:
        return await self._limited(partial(_answers_as_reposync, url)) is True


_REMEDIES = {
    "redis": "Check that it runs, and that REPOSYNC_REDIS_URL names it.",
    "qdrant": "Check that it runs, and that REPOSYNC_QDRANT_URL or `qdrant.url` names it.",
    "embedding": "Check that its server runs, and `embedding` in the registry file.",
    "gitlab": "Check its address and token, also that the variable of the token is set here.",
}
_WELL = {
    "redis": "answers, and its locks can be taken",
    "clock": "agrees with the database's",
    "waits": "no run waits for long",
}


async def _answers_as_reposync(url: str) -> bool:
    client = HttpClient(url, ErrorKinds(RepoSyncError, RepoSyncError, RepoSyncError), timeouts=Timeouts(3.0, 5.0))
    try:
        async with client.stream("GET", f"{url}/readyz") as response:
            body = await client.read(response, _MAX_ANSWER_BYTES)
    except (HttpRefused, TransientFailure) as failure:  # 503: it is starting, or waits for its database
        body = failure.body or b""
    except RepoSyncError:
        return False
    finally:
        await client.close()
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return "database" in parse_json(body)["components"]
    return False
