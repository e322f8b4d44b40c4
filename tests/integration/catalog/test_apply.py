"""A registry file becomes the catalogue, and two of them never fight."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text as sql

from reposync.catalog.apply import Applying, Plan, registry_in_force
from reposync.catalog.targets import Catalog, add_repository
from reposync.config.loading import LoadedRegistry, load_registry
from reposync.errors import RegistryConflict, SecretMissing
from reposync.store.database import REGISTRATIONS, Database
from reposync.store.registry import RegistryFiles, RegistrySuperseded
from reposync.store.repositories import Repositories
from reposync.store.repository import Registration
from tests.fixtures.applied import replace_document


@dataclass
class Pod:
    """Sees a registry file at `path`, with a content of its own: the mount of one pod is not that of another."""

    database: Database
    path: Path
    name: str = "pod"
    loaded: LoadedRegistry | None = None

    def read(self, text: str) -> LoadedRegistry:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(text)
        return load_registry(self.path, os.environ)

    async def starts(self, text: str) -> bool:
        """Whether what it read is in force."""
        self.loaded = self.read(text)
        return await self._writes(self.loaded)

    async def sees_change(self, text: str) -> bool:
        former, self.loaded = self.loaded, self.read(text)
        return await self._writes(self.loaded, instead_of=None if former is None else former.digest)

    async def requests(self, text: str, *, take_over: bool = False) -> Plan:
        """`reposync apply`."""
        applying = Applying(self.database, self.read(text), by="person")
        plan = await applying.plan(take_over=take_over)
        if conflict := plan.conflict():
            raise conflict
        await applying.write(plan, on_request=True)
        return plan

    async def plans(self, text: str) -> Plan:
        return await Applying(self.database, self.read(text), by="person").plan()

    async def _writes(self, loaded: LoadedRegistry, instead_of: str | None = None) -> bool:
        applying = Applying(self.database, loaded, by=self.name)
        return await applying.write(await applying.plan(), instead_of=instead_of)


async def active(database: Database) -> dict[str, str]:
    """Name -> location of what is kept in sync."""
    return {row.name: row.location for row in await Repositories(database).list() if row.is_active}


async def catalog_of(database: Database) -> Catalog:
    return Catalog(await registry_in_force(database, {}), Repositories(database))


ALPHA = "repositories: [{name: alpha, path: %s, schedule: '*/5 * * * *'}]\n"


def entries(*names: str) -> str:
    listed = "".join(f"  - {{name: {name}, git: 'https://git.example.com/{name}.git'}}\n" for name in names)
    return f"repositories:\n{listed}"


async def test_applying_a_file_twice_changes_nothing_the_second_time(database: Database, tmp_path: Path) -> None:
    pod = Pod(database, tmp_path / "repositories.yaml")
    first = await pod.requests(entries("alpha", "beta"))
    before = await Repositories(database).list()

    second = await pod.requests("# a comment\n" + entries("beta", "alpha"))

    assert [each.kind for each in first.changes] == ["added", "added"]
    assert (second.changes, second.unchanged, second.standing) == ((), 2, "current")
    assert await Repositories(database).list() == before


async def test_a_plan_names_what_changes_key_by_key_and_writes_nothing(database: Database, tmp_path: Path) -> None:
    pod = Pod(database, tmp_path / "repositories.yaml")
    await pod.requests(entries("alpha", "beta") + "embedding: {provider: none}\n")
    before = await Repositories(database).list()

    plan = await pod.plans(
        "defaults: {schedule: '@daily'}\nrepositories: [{name: alpha, git: 'https://git.example.com/alpha.git'}]\n"
    )

    assert [(each.kind, each.what, dict(each.keys)) for each in plan.changes] == [
        ("added", "section defaults", {"schedule": (None, "@daily")}),
        ("gone", "section embedding", {"provider": ("none", None)}),
        ("changed", "repository alpha", {"schedule": ("0 */6 * * *", "0 0 * * *")}),
        ("gone", "repository beta", {}),
    ]
    assert await Repositories(database).list() == before


async def test_two_files_that_claim_one_name_are_a_conflict_that_names_both_and_changes_nothing(
    database: Database, tmp_path: Path
) -> None:
    mine, theirs = Pod(database, tmp_path / "a/repositories.yaml"), Pod(database, tmp_path / "b/repositories.yaml")
    await mine.starts(ALPHA % "/srv/alpha")

    with pytest.raises(RegistryConflict) as refused:
        await theirs.requests(ALPHA % "/srv/beta")
    assert str(tmp_path / "a/repositories.yaml") in str(refused.value)
    assert str(tmp_path / "b/repositories.yaml") in str(refused.value)

    # Daemons on both files, started again and again: what is not in conflict is applied, and nothing flips.
    for _ in range(3):
        await theirs.starts(ALPHA % "/srv/beta" + "  # and:\n" + "")
        await theirs.starts("repositories: [{name: alpha, path: /srv/beta}, {name: other, path: /srv/other}]\n")
        await mine.starts(ALPHA % "/srv/alpha")
        assert await active(database) == {"alpha": "/srv/alpha", "other": "/srv/other"}
        assert (await Repositories(database).get("alpha")).cron_expression == "*/5 * * * *"


async def test_sections_and_servers_of_two_files_are_in_conflict_where_they_differ(
    database: Database, tmp_path: Path
) -> None:
    server = "gitlab: [{name: main, url: 'https://%s'}]\n"
    project = "repositories: [{name: %s, gitlab: main, project: a/%s}]\n"
    mine, theirs = Pod(database, tmp_path / "a.yaml"), Pod(database, tmp_path / "b.yaml")
    await mine.starts(server % "one.example.com" + "embedding: {provider: none}\n" + project % ("one", "one"))

    same = server % "one.example.com" + "embedding: {provider: none}\n" + project % ("two", "two")
    assert (await theirs.plans(same)).conflicts == ()
    other = server % "two.example.com" + "embedding: {provider: local}\n" + project % ("two", "two")
    assert {each.what for each in (await theirs.plans(other)).conflicts} == {"GitLab server main", "section embedding"}

    await theirs.starts(other)
    catalog = await catalog_of(database)
    assert catalog.registry.embedding.provider == "none"
    assert set(await active(database)) == {"one"}, "a project is not looked for on another server of the same name"


async def test_a_file_that_was_moved_on_this_machine_leaves_its_claims_behind(
    database: Database, tmp_path: Path
) -> None:
    await Pod(database, tmp_path / "before/repositories.yaml").starts(entries("alpha", "left"))
    (tmp_path / "before/repositories.yaml").unlink()

    await Pod(database, tmp_path / "after/repositories.yaml").starts(entries("alpha"))

    assert set(await active(database)) == {"alpha"}
    assert [each.path for each in await RegistryFiles(database).all()] == [str(tmp_path / "after/repositories.yaml")]


async def test_a_document_of_another_file_that_cannot_be_used_here_keeps_no_file_from_being_applied(
    database: Database, tmp_path: Path
) -> None:
    await Pod(database, tmp_path / "a.yaml").starts(entries("alpha"))
    await replace_document(database, tmp_path / "a.yaml", {"daemon": {"concurrency": "plenty"}})

    assert await Pod(database, tmp_path / "b.yaml").starts(entries("beta"))

    assert set(await active(database)) == {"alpha", "beta"}


async def test_a_file_of_a_program_before_0_2_becomes_the_first_applied_one(database: Database, tmp_path: Path) -> None:
    for name in ("alpha", "left"):  # nothing is known but the columns
        place = {"location": f"https://git.example.com/{name}.git", "source": "git", "origin": "config"}
        await Repositories(database).register(Registration(name=name, collection="code", **place))

    plan = await Pod(database, tmp_path / "repositories.yaml").requests(entries("alpha"))

    found = [(each.kind, each.what) for each in plan.changes]
    assert found == [("changed", "repository alpha"), ("gone", "repository left")]
    assert set(await active(database)) == {"alpha"}


# Roll-outs ----------------------------------------------------------------------------------------------------------

OLD, NEW = entries("old", "both"), entries("new", "both")


async def test_a_rollback_of_the_file_under_running_pods_is_applied(database: Database, tmp_path: Path) -> None:
    path = tmp_path / "repositories.yaml"
    one, other = Pod(database, path), Pod(database, path)
    for pod in (one, other):
        await pod.starts(OLD)
    await one.sees_change(NEW)
    await other.sees_change(NEW)

    assert await one.sees_change(OLD)
    assert set(await active(database)) == {"old", "both"}
    assert not await Pod(database, path).starts(NEW), "one that starts with the content before the rollback"
    assert await other.sees_change(OLD)
    assert set(await active(database)) == {"old", "both"}


# Definitions and secrets --------------------------------------------------------------------------------------------

SECRETS = """
gitlab:
  - {name: main, url: 'https://gitlab.example.com', token: '${GITLAB_TOKEN}', webhook_secret: in-the-clear-0123456789}
repositories:
  - {name: project, gitlab: main, project: group/project, chunk: {size: 900, overlap: 90}, exclude: ['*.lock']}
  - {name: handbook, git: 'https://oauth2:${HANDBOOK}@git.example.com/handbook.git', branch: release}
  - {name: clear, git: 'https://oauth2:written-into-it@git.example.com/clear.git'}
embedding: {provider: openai, model: m, api_key: '${EMBEDDING_KEY}'}
qdrant: {url: 'https://qdrant.example.com', api_key: also-in-the-clear}
"""


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    values = {"GITLAB_TOKEN": "glpat-of-this-process", "HANDBOOK": "p@ss/word", "EMBEDDING_KEY": "sk-of-this-process"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return values


async def everything(database: Database) -> str:
    """What the database holds, all tables."""
    found = []
    async with database.read() as connection:
        for table in ("repositories", "registry_files", "superseded_digests", "project_groups"):
            rows = await connection.execute(sql(f"SELECT * FROM {table}"))
            found += [json.dumps(dict(row._mapping), default=str) for row in rows]
    return "\n".join(found)


async def test_no_secret_enters_the_database(database: Database, tmp_path: Path, secrets: dict[str, str]) -> None:
    await Pod(database, tmp_path / "repositories.yaml").starts(SECRETS)
    held = await everything(database)
    in_the_clear = ("in-the-clear-0123456789", "written-into-it", "also-in-the-clear")
    for secret in (*secrets.values(), "p%40ss", *in_the_clear):
        assert secret not in held
    assert "${GITLAB_TOKEN}" in held


async def test_a_process_with_the_variables_works_with_the_rows_alone(
    database: Database, tmp_path: Path, secrets: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await Pod(database, tmp_path / "repositories.yaml").starts(SECRETS)
    (tmp_path / "repositories.yaml").unlink()
    monkeypatch.setenv("GITLAB_TOKEN", "glpat-that-was-rotated")
    monkeypatch.chdir(tmp_path)
    catalog = await catalog_of(database)

    project = (await catalog.find("project")).repository
    handbook = (await catalog.find("handbook")).repository

    assert project.server is not None and project.server.token is not None
    assert project.server.token.get_secret_value() == "glpat-that-was-rotated"
    assert (project.chunk.size, project.chunk.overlap, project.exclude) == (900, 90, ("*.lock",))
    assert handbook.password is not None and handbook.password.get_secret_value() == "p@ss/word"
    assert handbook.git == "https://git.example.com/handbook.git"
    assert (handbook.username, handbook.branch) == ("oauth2", "release")


async def test_a_process_without_a_secret_reads_everything_else_and_names_what_is_missing(
    database: Database, tmp_path: Path, secrets: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await Pod(database, tmp_path / "repositories.yaml").starts(SECRETS)
    for name in secrets:
        monkeypatch.delenv(name)
    catalog = await catalog_of(database)

    project, handbook, clear = [(await catalog.find(name)).repository for name in ("project", "handbook", "clear")]

    for secret, words in (
        (project.server and project.server.token, "GITLAB_TOKEN"),
        (handbook.password, "HANDBOOK"),
        (clear.password, f"in the clear in {tmp_path / 'repositories.yaml'}"),
        (catalog.registry.embedding.api_key, "EMBEDDING_KEY"),
    ):
        assert secret is not None
        with pytest.raises(SecretMissing) as missing:
            secret.get_secret_value()
        assert words in str(missing.value)


async def test_defaults_of_the_file_reach_what_was_registered_by_command(database: Database, tmp_path: Path) -> None:
    pod = Pod(database, tmp_path / "repositories.yaml")
    await pod.requests(entries("alpha"))
    definition = {"name": "added", "git": "https://git.example.com/added.git"}
    await add_repository(await catalog_of(database), definition)

    await pod.requests("defaults: {collection: elsewhere, include: ['*.py']}\n" + entries("alpha"))

    catalog = await catalog_of(database)
    added = (await catalog.find("added")).repository
    assert (added.collection, added.include) == ("elsewhere", ("*.py",))
    assert (await Repositories(database).get("added")).collection == "elsewhere"


async def test_defaults_of_the_first_file_count_for_what_was_added_in_any_order(
    database: Database, tmp_path: Path
) -> None:
    mine, theirs = Pod(database, tmp_path / "a.yaml"), Pod(database, tmp_path / "b.yaml")
    texts = ["defaults: {collection: first}\n" + entries("alpha"), "defaults: {collection: second}\n" + entries("beta")]
    await mine.starts(texts[0])
    await add_repository(await catalog_of(database), {"name": "added", "git": "https://git.example.com/added.git"})
    for pod, text in ((theirs, texts[1]), (mine, texts[0]), (theirs, texts[1])):
        await pod.starts(text)
        assert (await Repositories(database).get("added")).collection == "first"


async def test_only_what_the_index_is_made_of_is_another_generation(database: Database, tmp_path: Path) -> None:
    pod = Pod(database, tmp_path / "repositories.yaml")
    entry = "repositories: [{name: alpha, git: 'https://git.example.com/alpha.git'%s}]\n"
    generations = []
    for more in ("", ", schedule: '@daily'", ", schedule: '@daily', exclude: ['*.lock']", ", branch: next"):
        await pod.requests(entry % more)
        generations.append((await Repositories(database).get("alpha")).generation)
    assert generations == [0, 0, 1, 2]


async def test_a_document_of_a_newer_program_is_read_without_what_is_not_known_here(
    database: Database, tmp_path: Path
) -> None:
    await Pod(database, tmp_path / "repositories.yaml").starts(entries("alpha") + "embedding: {provider: none}\n")
    file = (await RegistryFiles(database).all())[0]
    document = {**file.document, "embedding": {"provider": "none", "warmth": 3}, "telepathy": {"on": True}}
    await replace_document(database, Path(file.path), document)

    catalog = await catalog_of(database)

    assert catalog.registry.embedding.provider == "none"
    assert (await catalog.find("alpha")).name == "alpha"


async def test_a_file_that_changes_while_a_different_one_takes_it_over_keeps_its_change(database: Database) -> None:
    files = RegistryFiles(database)
    who: dict[str, str] = {"host": "node-1", "by": "pod-1"}
    await files.put("/etc/b.yaml", "digest-b", {"gitlab": [{"name": "main"}]}, **who)

    def without_main(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
        left = [server for server in document["gitlab"] if server["name"] != "main"]
        return {"gitlab": left} if left != document["gitlab"] else None

    for number in range(10):
        servers = [{"name": "main"}, {"name": f"server-{number}"}]
        await asyncio.gather(
            files.put("/etc/a.yaml", f"digest-{number}", {"gitlab": servers}, **who),
            files.rewrite("/etc/a.yaml", without_main, taker="/etc/b.yaml", digest="digest-b"),
        )
        await files.rewrite("/etc/a.yaml", without_main, taker="/etc/b.yaml", digest="digest-b")
        (row,) = [file for file in await files.all() if file.path == "/etc/a.yaml"]
        assert (row.digest, row.document) == (f"digest-{number}", {"gitlab": [{"name": f"server-{number}"}]})

    await files.put("/etc/b.yaml", "digest-c", {}, **who)
    with pytest.raises(RegistrySuperseded):
        await files.rewrite("/etc/a.yaml", lambda _: {}, taker="/etc/b.yaml", digest="digest-b")
    await files.forget("/etc/a.yaml", "digest-0")
    assert len(await files.all()) == 2, "it was applied again since: it exists"


async def test_other_pods_hear_at_once_of_what_a_file_took_over(database: Database) -> None:
    files, heard = RegistryFiles(database), list[str]()
    for path in ("/etc/a.yaml", "/etc/b.yaml"):
        await files.put(path, path, {"embedding": {"provider": "none"}}, host="node-1", by="pod-1")
    database.subscribe(heard.append)

    await files.rewrite("/etc/a.yaml", lambda _: {}, taker="/etc/b.yaml", digest="/etc/b.yaml")

    assert heard == [REGISTRATIONS]
