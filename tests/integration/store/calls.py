"""Every method of the store that talks to the database, with arguments that it can be called with: on one installation,
whose rows can be restored as often as needed.

A new method has to be added here, or `test_every_method_of_the_store_has_a_call` fails."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pkgutil
import sys
import types
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

from sqlalchemy import text, update

import reposync.store
from reposync.finding import Finding
from reposync.store import index_queries, run_queries
from reposync.store.audit import AuditLog
from reposync.store.credentials import Credentials, OAuthClients
from reposync.store.database import Database
from reposync.store.endings import YIELDING, Block, Fail, Finish, Retry
from reposync.store.evaluations import Evaluations
from reposync.store.manifest import ManifestRow
from reposync.store.people_tables import AuditEntry, Credential, GitLabGrant
from reposync.store.registry import ProjectGroups, RegistryDocuments, RegistryReplaced
from reposync.store.repository import Repository
from reposync.store.run import EVERY_RUN, IN_ADVANCE, Ask, Run, RunChange, RunFigures, RunProblem
from reposync.store.run_log import RunLogLine
from reposync.store.status import CredentialKind, FileChange, RunStatus, RunTrigger
from reposync.store.tables import REPOSITORIES, IndexVersion, ProjectGroup, VersionState
from reposync.store.versions import Published
from reposync.store.workers import StoredEndedSessions, Workers
from tests.integration.store.conftest import COMMIT, TICK, Store, registration

LEASE_SECONDS = 3_000.0
FILE, DIGEST = "/etc/reposync/repositories.yaml", "digest-1"
BRAKE = {"commit": COMMIT, "planned": {"vanished": 9}, "losses": {"vanished": 9}, "indexed": 10}


@dataclass(frozen=True, slots=True)
class Installation:
    """`row`: a repository with a live, a retired and a building version, and with runs of every kind: `running` by this
    process, waiting, `blocked`, `failed`. `other`: one whose running run has lost its worker."""

    store: Store
    documents: RegistryDocuments
    groups: ProjectGroups
    workers: Workers
    sessions: StoredEndedSessions
    credentials: Credentials
    clients: OAuthClients
    audit: AuditLog
    grant: GitLabGrant
    row: Repository
    other: Repository
    running: Run
    blocked: Run
    failed: Run
    live: IndexVersion
    retired: IndexVersion
    building: IndexVersion

    @classmethod
    async def make(cls, database: Database) -> Installation:
        store, documents, groups, workers = (
            Store(database),
            RegistryDocuments(database),
            ProjectGroups(database),
            Workers(database),
        )
        await workers.beat("worker-1", host="node-1", version="0.2.0")
        await store.put_groups("gitlab.example.com/due", "gitlab.example.com/team")
        credentials, clients = Credentials(database), OAuthClients(database)
        grant = grant_of(database)
        await credentials.begin(grant, credential_of(grant, "session-1"))
        await credentials.add([credential_of(grant, "expired", lasts_seconds=-1.0), credential_of(grant, "session-2")])
        await credentials.claim_refresh(grant, "claim-1", LEASE_SECONDS)
        await clients.register("client-1", {"client_name": "An agent"}, "address-1", most=10, most_an_hour=10)
        async with database.write() as connection:
            first = {"embedding": {"model": "first"}}
            await documents.replace(connection, FILE, DIGEST, first, by="worker-1", instead_of=None)
        lost = await store.running("other", lease_seconds=-1.0)
        for name in ("abandoned", "abandoned too", "from the future", "from the future too"):
            run = await store.running(name, lease_seconds=-1.0 if name.startswith("abandoned") else 1e7)
            if name.startswith("abandoned"):
                await store.runs.cancel(run.id)
        run = await store.running(lease_seconds=LEASE_SECONDS)
        retired, live = await store.replaced(run)
        failed = await store.runs.end(run, Fail("SOURCE_UNAVAILABLE", "503"), RunFigures())
        await store.runs.enqueue("payments", Ask(RunTrigger.COMMAND))
        run = await store.taken("payments")
        blocked = await store.runs.end(run, Block("DELETION_BLOCKED", "9", brake=BRAKE), RunFigures())
        await store.runs.enqueue("payments", Ask(RunTrigger.COMMAND, approval=IN_ADVANCE))
        running = await store.taken("payments")
        building = await store.building(running, settings_key="settings-3")
        await store.runs.add_problems(running, [RunProblem("a.py", "failed", "It is empty.")])
        await store.runs.record_changes(running, [RunChange("a.py", FileChange.ADDED)])
        await store.logs.add(running.id, [RunLogLine(1, 1, TICK, "info", "run started")])
        await store.manifests.record(running, live.id, [row_of("a.py"), row_of("folder/b.py")])
        await store.runs.enqueue("payments", Ask(RunTrigger.HTTP))
        await store.due(TICK, "payments", "other")
        await store.repository("new", cron_expression="0 3 * * *")
        ahead = update(REPOSITORIES).where(REPOSITORIES.c.name.in_(["new", "other"]))
        await database.change(ahead.values(last_tick_at=store.history.now() + timedelta(hours=1)))
        return cls(
            store,
            documents,
            groups,
            workers,
            StoredEndedSessions(lambda: database),
            credentials,
            clients,
            AuditLog(database),
            grant,
            await store.repositories.get("payments"),
            await store.repositories.by_id(lost.repository_id),
            *(running, blocked, failed, live, retired, building),
        )

    @property
    def database(self) -> Database:
        return self.store.database

    def published(self, commit: str) -> Published:
        return Published(commit, None, True, "index-1", "rules-1", {}, None, "main", 7)

    async def applied(self, document: Mapping[str, Any]) -> None:
        """A document with another place of one repository, and without the others."""
        replaced = partial(
            self.documents.replace, path=FILE, digest="digest-2", document=document, by="worker-1", instead_of=DIGEST
        )
        moved = registration("payments", location="https://git.example.com/moved.git")
        with suppress(RegistryReplaced):
            await self.store.repositories.register_all([moved], leaving=["other", "new"], guard=replaced)


def row_of(path: str) -> ManifestRow:
    return ManifestRow(path, "a" * 40, 0o100644, 10, 1, None, "python", 1)


def grant_of(database: Database, grant_id: str = "grant-1") -> GitLabGrant:
    now = database.clock.now()
    person = {"gitlab": "https://gitlab.example.com", "user_id": 41, "username": "ann"}
    return GitLabGrant(id=grant_id, **person, sealed="c2VhbGVk", created_at=now, refreshed_at=now)


def credential_of(
    grant: GitLabGrant, credential_id: str, kind: CredentialKind = CredentialKind.SESSION, lasts_seconds: float = 3600.0
) -> Credential:
    return Credential(
        id=credential_id,
        kind=kind,
        connection_id=grant.id,
        family=f"family of {credential_id}",
        wrapped_key="d3JhcHBlZA==",
        created_at=grant.created_at,
        expires_at=grant.created_at + timedelta(seconds=lasts_seconds),
    )


Call: TypeAlias = Callable[[Installation], Awaitable[object]]

HEAD = "d" * 40


def _history() -> dict[str, Call]:
    return {
        "get": lambda it: it.store.history.get(it.running.id),
        "runs": lambda it: it.store.history.runs("payments", RunStatus.RUNNING),
        "require_known": lambda it: it.store.history.require_known("payments"),
        "active": lambda it: it.store.history.active(it.row.id),
        "by_ids": lambda it: it.store.history.by_ids([it.running.id]),
        "latest": lambda it: it.store.history.latest([it.row.id]),
        "strips": lambda it: it.store.history.strips([it.row.id]),
        "latest_statuses": lambda it: it.store.history.latest_statuses([RunStatus.RUNNING]),
        "queue": lambda it: it.store.history.queue(),
        "long_waits": lambda it: it.store.history.long_waits(1.0),
        "by_hour": lambda it: it.store.history.by_hour(TICK),
        "problems": lambda it: it.store.history.problems(it.running.id),
        "count_problems": lambda it: it.store.history.count_problems(it.running.id),
        "changes": lambda it: it.store.history.changes(it.running.id),
        "count_changes": lambda it: it.store.history.count_changes(it.running.id),
        "commit_words": lambda it: it.store.history.commit_words(it.row.id, COMMIT),
        "log_lines": lambda it: it.store.history.log_lines(it.running.id),
        "past_names": lambda it: it.store.history.past_names([it.row.id]),
        "purge": lambda it: it.store.history.purge(it.store.history.now() + timedelta(hours=1)),
    }


def _queue() -> dict[str, Call]:
    return {
        "enqueue": lambda it: it.store.runs.enqueue("payments", Ask(RunTrigger.COMMAND, full=True)),
        "enqueue of the other": lambda it: it.store.runs.enqueue("other", Ask(RunTrigger.COMMAND)),
        "enqueue of a removal": lambda it: it.store.runs.enqueue("payments", Ask(RunTrigger.HTTP, removal=True)),
        "enqueue_for_push": lambda it: it.store.runs.enqueue_for_push(
            it.row, HEAD, Ask(RunTrigger.WEBHOOK, max_attempts=3)
        ),
        "claim_orphan_removal": lambda it: it.store.runs.claim_orphan_removal(
            "orphan", "gone", "worker-1", LEASE_SECONDS
        ),
        "interrupt": lambda it: it.store.runs.interrupt(it.running.id),
        "cancel": lambda it: it.store.runs.cancel(it.running.id),
        "cancel of a blocked run": lambda it: it.store.runs.cancel(it.blocked.id),
        "approve": lambda it: it.store.runs.approve(it.blocked.id, Ask(RunTrigger.COMMAND)),
        "retry": lambda it: it.store.runs.retry(it.failed.id, Ask(RunTrigger.COMMAND)),
    }


def _runs() -> dict[str, Call]:
    figures, why = RunFigures(files_processed=1), ("SOURCE_UNAVAILABLE", "503")
    problem = [RunProblem("b.py", "failed", "It is empty.")]
    changed = [RunChange("b.py", FileChange.ADDED)]
    return {
        "claim": lambda it: it.store.runs.claim("worker-2", LEASE_SECONDS),
        "others_wait": lambda it: it.store.runs.others_wait(it.running),
        "asked_again": lambda it: it.store.runs.asked_again(it.running),
        "expire": lambda it: it.store.runs.expire(it.running),
        "heartbeat": lambda it: it.store.runs.heartbeat(it.running, LEASE_SECONDS, {"phase": "indexing"}, figures),
        "explain_lost": lambda it: it.store.runs.explain_lost(it.running, *why),
        "end": lambda it: it.store.runs.end(it.running, Finish(), figures),
        "end at the brake": lambda it: it.store.runs.end(it.running, Block(*why, brake=BRAKE), figures),
        "end of a failure": lambda it: it.store.runs.end(it.running, Fail(*why), figures),
        "end for a retry": lambda it: it.store.runs.end(it.running, Retry(*why, delay_seconds=1.0), figures),
        "end by a yield": lambda it: it.store.runs.end(it.running, YIELDING, figures),
        "record_brake": lambda it: it.store.runs.record_brake(it.running, BRAKE),
        "add_problems": lambda it: it.store.runs.add_problems(it.running, problem),
        "room_for_changes": lambda it: it.store.runs.room_for_changes(it.running),
        "record_changes": lambda it: it.store.runs.record_changes(it.running, changed),
        "record_risk": lambda it: it.store.runs.record_risk(it.running, ["a.py"]),
        "forget_problems": lambda it: it.store.runs.forget_problems(it.running, "failed"),
        "hide_problems": lambda it: it.store.runs.hide_problems(it.running, {"a.py": "[kind···].py~00000000"}),
    }


def _versions() -> dict[str, Call]:
    made = {"collection": "code", "physical": "code", "settings_key": "settings-4"}
    return {
        "of": lambda it: it.store.versions.of(it.row.id),
        "all": lambda it: it.store.versions.all(),
        "attributes": lambda it: it.store.versions.attributes(it.live.id),
        "origin": lambda it: it.store.versions.origin(it.live),
        "physical_collections": lambda it: it.store.versions.physical_collections(),
        "not_on": lambda it: it.store.versions.not_on("code", "code-2"),
        "add": lambda it: it.store.versions.add(it.running, VersionState.BUILDING, **made),
        "build_again": lambda it: it.store.versions.build_again(it.running, it.retired),
        "begin_epoch": lambda it: it.store.versions.begin_epoch(it.running, it.building, identity="index-1"),
        "publish": lambda it: it.store.versions.publish(it.running, it.building, it.row, it.published(HEAD)),
        "record_meaning": lambda it: it.store.versions.record_meaning(it.running, it.live.id, 5),
        "record_secret_rules": lambda it: it.store.versions.record_secret_rules(it.running, it.live.id, "2 set"),
        "record_commit_words": lambda it: it.store.versions.record_commit_words(it.running, b"words"),
        "commit_words": lambda it: it.store.versions.commit_words([it.live.id]),
        "asked_for_commit_words": lambda it: it.store.versions.asked_for_commit_words(it.row.id, 60.0),
        "record_head": lambda it: it.store.versions.record_head(it.running, HEAD, None),
        "remove": lambda it: it.store.versions.remove(it.running, it.retired.id),
    }


def _manifests() -> dict[str, Call]:
    rows = [row_of(f"{number}.py") for number in range(3)]
    return {
        "load": lambda it: it.store.manifests.load(it.live.id),
        "file": lambda it: it.store.manifests.file(it.live.id, "a.py"),
        "near": lambda it: it.store.manifests.near(it.live.id, "b.py"),
        "record": lambda it: it.store.manifests.record(it.running, it.building.id, rows),
        "forget": lambda it: it.store.manifests.forget(it.running, it.live.id, ["a.py"]),
        "counts": lambda it: it.store.manifests.counts(),
        "meaning_indexed": lambda it: it.store.manifests.meaning_indexed([it.live.id]),
        "totals": lambda it: it.store.manifests.totals(it.live.id),
        "outdated": lambda it: it.store.manifests.outdated([(it.live.id, "a.py")]),
        "folder": lambda it: it.store.manifests.folder(it.live.id, "", 10),
        "breakdown": lambda it: it.store.manifests.breakdown(it.live.id),
    }


def _secret_findings() -> dict[str, Call]:
    found = [Finding(3, "gitlab-pat", "0" * 16, "mask")]
    return {
        "key": lambda it: it.store.findings.key(),
        "first_lines": lambda it: it.store.findings.first_lines(it.row.id),
        "record": lambda it: it.store.findings.record(it.running, COMMIT, {"a.py": found, "b.py": []}),
        "page": lambda it: it.store.findings.page(None, None, 10),
        "counts": lambda it: it.store.findings.counts(),
        "first_seen": lambda it: it.store.findings.first_seen(it.row.id, COMMIT),
        "hidden_files": lambda it: it.store.findings.hidden_files(it.row.id),
    }


def _repositories() -> dict[str, Call]:
    moved = {"location": "https://git.example.com/moved.git"}
    everything = [registration(name, **moved) for name in ("payments", "other", "new")]
    return {
        "get": lambda it: it.store.repositories.get("payments"),
        "by_id": lambda it: it.store.repositories.by_id(it.row.id),
        "list": lambda it: it.store.repositories.list(),
        "find": lambda it: it.store.repositories.find(source="git", location=it.row.location),
        "states": lambda it: it.store.repositories.states(),
        "names": lambda it: it.store.repositories.names(),
        "names_of": lambda it: it.store.repositories.names_of([it.row.id]),
        "places": lambda it: it.store.repositories.places(),
        "of_project": lambda it: it.store.repositories.of_project(7, [it.row.location]),
        "register": lambda it: it.store.repositories.register(registration("payments", **moved)),
        "register_all": lambda it: it.store.repositories.register_all(everything),
        "adopt": lambda it: it.store.repositories.adopt("payments", 8, expected=it.row),
        "rename": lambda it: it.store.repositories.rename(it.row, "renamed"),
        "deactivate": lambda it: it.store.repositories.deactivate("payments"),
        "pause": lambda it: it.store.repositories.pause("payments", "It is moved."),
        "resume": lambda it: it.store.repositories.resume("payments"),
        "remove": lambda it: it.store.repositories.remove("payments"),
        "remove by its run": lambda it: it.store.repositories.remove("payments", by=it.running),
    }


def _registry() -> dict[str, Call]:
    document: Mapping[str, Any] = {"embedding": {"model": "new"}}
    return {
        "RegistryDocuments.current": lambda it: it.documents.current(),
        "RegistryDocuments.replace": lambda it: it.applied(document),
        "ProjectGroups.all": lambda it: it.groups.all(),
        "ProjectGroups.write": lambda it: it.store.put_groups(
            "gitlab.example.com/new", gone=["gitlab.example.com/due"]
        ),
        "ProjectGroups.make_due": lambda it: it.groups.make_due(),
        "ProjectGroups.take": lambda it: it.groups.take(LEASE_SECONDS),
        "ProjectGroups.schedule": lambda it: it.groups.schedule(
            ProjectGroup(key="gitlab.example.com/team", due_at=it.groups.now()), it.groups.now()
        ),
    }


def _new() -> str:
    """An id: these are random, and no two calls use the same one."""
    return uuid.uuid4().hex


def _credentials() -> dict[str, Call]:
    ann = ("https://gitlab.example.com", 41)

    def begin(it: Installation) -> Awaitable[object]:
        grant = grant_of(it.database, _new())
        return it.credentials.begin(grant, credential_of(grant, _new()))

    return {
        "begin": begin,
        "add": lambda it: it.credentials.add([credential_of(it.grant, _new(), CredentialKind.PERSONAL)]),
        "find": lambda it: it.credentials.find("session-1"),
        "touch": lambda it: it.credentials.touch("session-1"),
        "exchange": lambda it: it.credentials.exchange("session-1", [credential_of(it.grant, "session-3")]),
        "end": lambda it: it.credentials.end("session-1"),
        "end_family": lambda it: it.credentials.end_family("family of session-1"),
        "end_own": lambda it: it.credentials.end_own("family of session-1", *ann),
        "own": lambda it: it.credentials.own(*ann, [CredentialKind.SESSION]),
        "grant": lambda it: it.credentials.grant(it.grant.id),
        "claim_refresh": lambda it: it.credentials.claim_refresh(it.grant, "claim-2", LEASE_SECONDS),
        "write_tokens": lambda it: it.credentials.write_tokens(it.grant.id, "claim-1", "bmV3"),
        "give_up_refresh": lambda it: it.credentials.give_up_refresh(it.grant.id, "claim-1"),
        "end_grant": lambda it: it.credentials.end_grant(it.grant.id),
        "purge": lambda it: it.credentials.purge(),
    }


def _clients() -> dict[str, Call]:
    return {
        "get": lambda it: it.clients.get("client-1"),
        "register": lambda it: it.clients.register(_new(), {}, "address-1", most=10, most_an_hour=10),
        "touch": lambda it: it.clients.touch("client-1"),
    }


def _audit() -> dict[str, Call]:
    def entry(it: Installation) -> AuditEntry:
        words = {"actor": "@ann", "via": "http", "address": "192.0.2.7", "operation": "search", "outcome": "ok"}
        return AuditEntry(id=_new(), at=it.database.clock.now(), **words)

    return {
        "add": lambda it: it.audit.add([entry(it)]),
        "page": lambda it: it.audit.page(10, actor="@ann", repository="payments"),
        "purge": lambda it: it.audit.purge(it.database.clock.now()),
    }


def _evaluations() -> dict[str, Call]:
    def values(it: Installation) -> dict[str, Any]:
        words = {"commit_sha": "a" * 40, "states": 0, "model": None, "questions": 3, "figures": {}}
        return {"id": _new(), "at": it.database.clock.now(), **words}

    return {
        "add": lambda it: Evaluations(it.database).add(it.row.id, values(it)),
        "of": lambda it: Evaluations(it.database).of(it.row.id, 10),
    }


def _rest() -> dict[str, Call]:
    one = text("SELECT 1")
    due = {"grace_seconds": 1e10, "max_attempts": 3}
    return {
        "Ticks.take": lambda it: it.store.ticks.take(**due),
        "Ticks.reschedule": lambda it: it.store.ticks.reschedule(),
        "Workers.beat": lambda it: it.workers.beat("worker-2", host="node-2", version="0.2.0"),
        "Workers.leave": lambda it: it.workers.leave("worker-1"),
        "Workers.alive": lambda it: it.workers.alive(),
        "StoredEndedSessions.end": lambda it: it.sessions.end("session-1"),
        "StoredEndedSessions.has_ended": lambda it: it.sessions.has_ended("session-1"),
        "Database.rows": lambda it: it.database.rows(one),
        "Database.scalars": lambda it: it.database.scalars(one),
        "Database.scalar": lambda it: it.database.scalar(one),
        "Database.change": lambda it: it.database.change(text("UPDATE repositories SET epoch = epoch + 1")),
        "Database.tell": lambda it: it.database.tell("7:"),
        "Database.ping": lambda it: it.database.ping(),
        "Database.schema": lambda it: it.database.schema(),
        "Database.upgrade": lambda it: it.database.upgrade(),
        "DatabaseClock.measure": lambda it: it.database.clock.measure(),
        "index_queries.search_scope": lambda it: index_queries.search_scope(it.database, [it.live.id]),
        "index_queries.searched_version": lambda it: index_queries.searched_version(it.database, "payments"),
        "index_queries.unfinished_repositories": lambda it: index_queries.unfinished_repositories(it.database),
        "index_queries.left_out_files": lambda it: index_queries.left_out_files(
            it.database, ["payments"], path=None, most_repositories=5
        ),
        "index_queries.version_owners": lambda it: index_queries.version_owners(it.database),
        "index_queries.repository_names": lambda it: index_queries.repository_names(it.database, [it.live.id]),
        "index_queries.live_versions": lambda it: index_queries.live_versions(it.database, path="a.py"),
        "index_queries.stored_files": lambda it: index_queries.stored_files(it.database, it.live.id),
        "index_queries.version_summaries": lambda it: index_queries.version_summaries(it.database),
        "index_queries.repository_glances": lambda it: index_queries.repository_glances(it.database),
        "run_queries.count_by_status": lambda it: run_queries.count_by_status(it.database, EVERY_RUN),
        "run_queries.equal_errors": lambda it: run_queries.equal_errors(it.database, EVERY_RUN),
        "run_queries.run_points": lambda it: run_queries.run_points(it.database, EVERY_RUN, (), 10),
        "index_queries.commit_pages": lambda it: index_queries.commit_pages(it.database, [it.row.id]),
        "index_queries.commit_page": lambda it: index_queries.commit_page(it.database, it.row.id),
    }


def _of(name: str, calls: Mapping[str, Call]) -> dict[str, Call]:
    return {f"{name}.{method}": call for method, call in calls.items()}


CALLS: Mapping[str, Call] = {
    **_of("RunHistory", _history()),
    **_of("Runs", _queue()),
    **_of("Runs", _runs()),
    **_of("Versions", _versions()),
    **_of("Manifests", _manifests()),
    **_of("SecretFindings", _secret_findings()),
    **_of("Credentials", _credentials()),
    **_of("OAuthClients", _clients()),
    **_of("AuditLog", _audit()),
    **_of("Evaluations", _evaluations()),
    "RunLogs.add": lambda it: it.store.logs.add(it.running.id, [RunLogLine(1, 2, TICK, "info", "planned")]),
    **_of("Repositories", _repositories()),
    **_registry(),
    **_rest(),
}
"""By name: the method, and if it is called in several ways, a few words after a space."""

NOT_HERE = {
    "Connection": "is used within a transaction, by these methods",
    "notifications.listen": "waits; its own connection has no transaction",
    "RowWatch": "calls what it is given",
    "Connector": "opens connections",
    "Database.read": "is used by all of them",
    "Database.write": "is used by all of them",
    "Database.whole": "is used by all of them",
    "Database.close": "ends the test's own connection",
}


def methods_of_the_store() -> set[str]:
    """Public coroutine functions that use a database: of classes, and of modules if it is their first argument."""
    found = set()
    for info in pkgutil.iter_modules(reposync.store.__path__, "reposync.store."):
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) != info.name or name.startswith("_"):
                continue
            if inspect.isclass(value):
                found |= {f"{name}.{method}" for method, of in vars(value).items() if _is_public(method, of)}
            elif _is_public(name, value) and next(iter(inspect.signature(value).parameters), "") == "database":
                found.add(f"{info.name.rpartition('.')[2]}.{name}")
    return {each for each in found if each not in NOT_HERE and each.partition(".")[0] not in NOT_HERE}


def _is_public(name: str, value: object) -> bool:
    function = inspect.unwrap(value) if callable(value) else value
    return not name.startswith("_") and (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function))


@types.coroutine
def at_await(number: int, work: Awaitable[object], action: Callable[[], object]) -> Generator[Any, Any, int]:
    """Await `work`, and call `action` at its await of this number. Returns how many it had."""
    steps, awaits = work.__await__(), 0
    try:
        waits_for = next(steps)
        while True:
            awaits += 1
            if awaits == number:
                action()
            try:
                answer = yield waits_for
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is for `work`
                waits_for = steps.throw(error)
            else:
                waits_for = steps.send(answer)
    except StopIteration:
        return awaits


# A different process -------------------------------------------------------------------------------------------------


class OtherProcess:
    """Restores all rows in one transaction: a write that nobody may block."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def restores(self) -> str:
        """Why it could not, in the words of the database; empty if it could."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"restore\n")
        answer = (await self._process.stdout.readline()).decode().strip()
        assert answer, "the other process ended"
        return "" if answer == "done" else answer


@asynccontextmanager
async def other_process(url: str) -> AsyncGenerator[OtherProcess, None]:
    """One that restores the rows of this moment."""
    program = [sys.executable, "-m", "tests.integration.store.restoring", url]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*program, stdin=pipe, stdout=pipe)
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield OtherProcess(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
