"""A registry file becomes the catalogue, as a whole, and pods with different ones never fight."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import text as sql

from reposync.catalog.apply import Applying, Plan, registry_in_force
from reposync.catalog.targets import Catalog, add_repository
from reposync.config.document import RegistryErrors
from reposync.config.loading import LoadedRegistry, load_registry
from reposync.config.registry import Registry
from reposync.errors import RegistryConflict, SecretMissing
from reposync.store.database import Database
from reposync.store.registry import RegistryDocuments
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

    async def requests(self, text: str) -> Plan:
        """`reposync apply`."""
        plan = await Applying(self.database, self.read(text), by="person").apply(on_request=True)
        if conflict := plan.conflict():
            raise conflict
        return plan

    async def plans(self, text: str) -> Plan:
        return await Applying(self.database, self.read(text), by="person").plan()

    async def _writes(self, loaded: LoadedRegistry, instead_of: str | None = None) -> bool:
        return (await Applying(self.database, loaded, by=self.name).apply(instead_of=instead_of)).applied


async def active(database: Database) -> dict[str, str]:
    """Name -> location of what is kept in sync."""
    return {row.name: row.location for row in await Repositories(database).list() if row.is_active}


async def catalog_of(database: Database) -> Catalog:
    return Catalog(await registry_in_force(database), Repositories(database))


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


async def test_what_a_document_leaves_out_has_its_default_whatever_was_in_effect_before(
    database: Database, tmp_path: Path
) -> None:
    server = "gitlab: [{name: main, url: 'https://gitlab.example.com'}]\n"
    before = server + "search: {ranking: plain}\ndefaults: {collection: elsewhere}\n" + entries("alpha", "left")
    await Pod(database, tmp_path / "before/repositories.yaml").requests(before)

    await Pod(database, tmp_path / "after/repositories.yaml").requests(entries("alpha"))

    registry = (await catalog_of(database)).registry
    assert (registry.search, registry.gitlab) == (Registry().search, ())
    assert (await Repositories(database).get("alpha")).collection == Registry().defaults.collection
    assert set(await active(database)) == {"alpha"}


async def test_a_name_that_a_person_registered_is_a_conflict_that_a_request_refuses_and_a_pod_leaves(
    database: Database, tmp_path: Path
) -> None:
    await add_repository(await catalog_of(database), {"name": "mine", "git": "https://git.example.com/other.git"})
    pod = Pod(database, tmp_path / "repositories.yaml")

    with pytest.raises(RegistryConflict, match="'mine' comes from a command on"):
        await pod.requests(entries("alpha", "mine"))
    assert set(await active(database)) == {"mine"}

    for _ in range(2):
        assert await pod.starts(entries("alpha", "mine"))
        assert await active(database) == {
            "alpha": "https://git.example.com/alpha.git",
            "mine": "https://git.example.com/other.git",
        }
    await pod.requests(entries("alpha"))
    assert set(await active(database)) == {"alpha", "mine"}, "what a file does not name is a person's own"


async def test_a_current_document_that_cannot_be_used_here_keeps_no_file_from_being_applied(
    database: Database, tmp_path: Path
) -> None:
    pod = Pod(database, tmp_path / "repositories.yaml")
    await pod.starts(entries("alpha"))
    await replace_document(database, {"daemon": {"concurrency": "plenty"}})

    assert await pod.sees_change(entries("beta"))

    assert set(await active(database)) == {"beta"}


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


async def test_pods_that_mount_one_document_in_different_places_do_nothing_after_the_first(
    database: Database, tmp_path: Path
) -> None:
    """As two containers with the network of their host: it has one name, and neither sees the file of the other."""
    pods = [Pod(database, tmp_path / f"mount-{number}/repositories.yaml") for number in range(3)]
    await pods[0].starts(NEW)
    before = await Repositories(database).list(), await RegistryDocuments(database).current()
    pods[0].path.unlink()

    for pod in (*pods[1:], *pods):
        assert await pod.starts(NEW)
        assert (await Repositories(database).list(), await RegistryDocuments(database).current()) == before


async def test_old_pods_of_a_rolling_update_bring_nothing_back(database: Database, tmp_path: Path) -> None:
    old, new = Pod(database, tmp_path / "old.yaml"), Pod(database, tmp_path / "new.yaml")
    for text in (entries("first"), OLD):
        await old.requests(text)
    assert await new.starts(NEW)

    for text in (OLD, entries("first"), OLD):
        assert not await old.starts(text)
        assert set(await active(database)) == {"new", "both"}
        assert (await old.plans(text)).standing == "superseded"
    assert (await old.requests(OLD)).applied, "a person says so"
    assert set(await active(database)) == {"old", "both"}
    assert not await new.starts(NEW)


async def test_of_documents_that_are_applied_at_once_one_wins_with_all_its_rows(
    database: Database, tmp_path: Path
) -> None:
    texts = [entries(*(f"of-{number}-{entry}" for entry in range(60))) for number in range(3)]
    pods = [Pod(database, tmp_path / f"{number}.yaml") for number in range(3)]

    writes = (pod.starts(text) for pod, text in zip(pods, texts, strict=True))
    assert set(await asyncio.gather(*writes)) <= {True, False}

    current = await RegistryDocuments(database).current()
    assert current is not None
    names = {pod.loaded.digest: {each.name for each in pod.loaded.registry.repositories} for pod in pods if pod.loaded}
    assert set(await active(database)) == names[current.digest]


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
  - {name: main, url: 'https://gitlab.example.com', token: '${GITLAB_TOKEN}', webhook_secret: "${HOOK}"}
repositories:
  - {name: project, gitlab: main, project: group/project, chunk: {size: 900, overlap: 90}, exclude: ['*.lock']}
  - {name: handbook, git: 'https://oauth2:${HANDBOOK}@git.example.com/handbook.git', branch: release}
embedding: {provider: openai, model: m, api_key: '${EMBEDDING_KEY}'}
qdrant: {url: 'https://qdrant.example.com', api_key: '${QDRANT:-}'}
"""


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    values = {"GITLAB_TOKEN": "glpat-of-this-process", "HANDBOOK": "p@ss/word", "EMBEDDING_KEY": "sk-of-this-process"}
    values |= {"HOOK": "a-secret-of-webhooks", "QDRANT": "key-of-qdrant"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return values


async def everything(database: Database) -> str:
    """What the database holds, all tables."""
    found = []
    async with database.read() as connection:
        for table in ("repositories", "registry_documents", "project_groups"):
            rows = await connection.execute(sql(f"SELECT * FROM {table}"))
            found += [json.dumps(dict(row._mapping), default=str) for row in rows]
    return "\n".join(found)


async def test_no_secret_enters_the_database(database: Database, tmp_path: Path, secrets: dict[str, str]) -> None:
    await Pod(database, tmp_path / "repositories.yaml").starts(SECRETS)
    held = await everything(database)
    for secret in (*secrets.values(), "p%40ss"):
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

    project, handbook = [(await catalog.find(name)).repository for name in ("project", "handbook")]

    for secret, words in (
        (project.server and project.server.token, "GITLAB_TOKEN"),
        (handbook.password, "HANDBOOK"),
        (catalog.registry.embedding.api_key, "EMBEDDING_KEY"),
    ):
        assert secret is not None
        with pytest.raises(SecretMissing) as missing:
            secret.get_secret_value()
        assert words in str(missing.value)


async def test_a_file_with_a_secret_in_the_clear_changes_nothing(database: Database, tmp_path: Path) -> None:
    pod = Pod(database, tmp_path / "repositories.yaml")
    await pod.starts(OLD)
    before = await everything(database)

    with pytest.raises(RegistryErrors, match=r"repositories.yaml:\d+:\d+: .*in the clear") as refused:
        await pod.requests("repositories: [{name: new, git: 'https://u:written-into-it@git.example.com/n.git'}]\n")

    assert "written-into-it" not in str(refused.value)
    assert await everything(database) == before


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
    file = await RegistryDocuments(database).current()
    assert file is not None
    document = {**file.document, "embedding": {"provider": "none", "warmth": 3}, "telepathy": {"on": True}}
    await replace_document(database, document)

    catalog = await catalog_of(database)

    assert catalog.registry.embedding.provider == "none"
    assert (await catalog.find("alpha")).name == "alpha"
