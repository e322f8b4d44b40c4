"""A registry that was applied on one machine, used on one that lacks its files, folders and variables."""

from __future__ import annotations

import base64
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel, SecretStr

from reposync.config.registry import Registry
from tests.acceptance.conftest import Person
from tests.fixtures.pods import Pod, until
from tests.fixtures.repositories import GitRepository

# Nothing answers there. Required keys, and those that make a secret one of this section.
NOWHERE = "http://127.0.0.1:9"
ENTRIES: dict[tuple[str, ...], dict[str, Any]] = {
    ("gitlab",): {"name": "other", "url": NOWHERE},
    ("repositories",): {"name": "other", "schedule": "never"},
    ("groups",): {"gitlab": "other", "group": "platform", "discover": "yearly"},
    ("embedding",): {"provider": "openai", "model": "words"},
    ("qdrant",): {"url": NOWHERE},
}
SOURCES = {"path": {}, "password": {"git": f"{NOWHERE}/group/project.git"}}
VALUE = "whsec_" + base64.b64encode(b"k" * 32).decode()
READ_COMMANDS = (
    "history",
    "repos list",
    "repos show app",
    "index status",
    "runs show {run}",
    "locks list",
    "apply --dry-run repositories.yaml",
)


def local_keys(model: type[BaseModel] = Registry, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], type]]:
    """All keys of the registry whose value only one machine can judge: files and folders, and secrets, which are
    references to variables."""
    for name, field in model.model_fields.items():
        for part in parts(field.annotation):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from local_keys(part, (*at, field.alias or name))
            elif isinstance(part, type) and issubclass(part, Path | SecretStr):
                yield (*at, field.alias or name), part


def parts(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) in (Union, types.UnionType, tuple) or get_args(annotation):
        for argument in get_args(annotation):
            yield from parts(argument)
    else:
        yield annotation


KEYS = sorted(set(local_keys()), key=str)
OF_ANOTHER_PROVIDER = ("embedding", "path")
"""Goes with no other key of its section. That the folder is missing is known when a text is embedded."""


def write_registry(home: Path, repository: GitRepository, *, without: tuple[str, ...] = ()) -> None:
    """With each key that a machine can lack, except in the sections `without`: files `local/KEY`, variables."""
    (home / "local").mkdir()
    document: dict[str, Any] = {"repositories": [{"name": "app", "path": str(repository.path), "schedule": "never"}]}
    for number, (key, kind) in enumerate(KEYS):
        *where, last = key
        if where[0] in without or key == OF_ANOTHER_PROVIDER:
            continue
        value = f"${{LOCAL_{number}}}"
        if kind is Path:
            file = home / "local" / f"{number}-{'-'.join(key)}"
            file.write_text("- {question: first, repository: app, path: a.py}\n")
            value = str(file)
        section = where[0]
        entry = ENTRIES.get((section,), {})
        if section == "repositories":
            document[section].append(entry | SOURCES.get(last, {}) | {"name": f"other-{number}", last: value})
        elif section in ("gitlab", "groups"):
            document.setdefault(section, []).append(entry | {"name": f"server-{number}", last: value})
        elif where == ["http", "sign_in"]:
            document.setdefault("gitlab", []).append({"name": "people", "url": NOWHERE})
            document.setdefault("http", {}).update(access="gitlab", gitlab="people", public_url=NOWHERE)
            document["http"]["sign_in"] = {"client_id": "application", last: value}
        elif where == ["http", "tokens"]:
            token = {"name": "ci", "repositories": ["app"], last: value}
            document.setdefault("http", {}).setdefault("tokens", []).append(token)
        else:
            assert len(where) == 1, f"{key} is deeper than this test writes"
            document.setdefault(section, dict(entry))[last] = value
    (home / "repositories.yaml").write_text(yaml.safe_dump(document))


def on_another_machine(person: Person, value: str | None) -> None:
    """Its registry file is elsewhere too: it works with what was applied."""
    (person.home / "local").rename(person.home / "elsewhere")
    for number, _ in enumerate(KEYS):
        person.environment.pop(f"LOCAL_{number}", None)
        if value is not None:
            person.environment[f"LOCAL_{number}"] = value


@pytest.fixture
def app(person: Person, repository: GitRepository) -> Person:
    repository.commit({"a.py": b"def first(): pass\n"})
    person.environment |= {f"LOCAL_{number}": VALUE for number, _ in enumerate(KEYS)}
    person.environment["REPOSYNC_STATE_DIR"] = str(person.home / "state")
    return person


def test_there_are_such_keys():
    assert {("qdrant", "ca_file"), ("embedding", "api_key"), ("gitlab", "token")} <= dict(KEYS).keys()


VALUES = {"unset": None, "empty": "", "unfit": "ümlaut\nand a line", "short": "short"}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_what_only_a_different_machine_has_stops_no_command_that_reads(
    app: Person, repository: GitRepository, value: str | None
):
    run = app.lists("sync", str(repository.path))[0]["id"]
    write_registry(app.home, repository)
    app.types("apply")
    on_another_machine(app, value)

    (app.home / "repositories.yaml").write_text("repositories: []\n")
    for words in READ_COMMANDS:
        done = app.types(*words.format(run=run).split())
        assert "Value error" not in done.stdout + done.stderr


@pytest.mark.parametrize("value", ["unset", "short"])
def test_what_only_a_different_machine_has_stops_no_work_that_does_not_need_it(
    app: Person, repository: GitRepository, value: str
):
    write_registry(app.home, repository, without=("qdrant", "embedding"))
    app.types("apply")
    app.types("sync", "app")
    on_another_machine(app, VALUES[value])

    app.types("sync", "app", "--full")
    assert app.lists("search", "first")[0]["path"] == "a.py"
    assert app.types("grep", "first").stdout
    app.types("verify", "app")


@pytest.mark.parametrize("value", ["unset", "short"])
def test_a_daemon_that_lacks_what_a_different_machine_has_stays_and_says_so(
    app: Person, pod: Pod, repository: GitRepository, value: str
):
    write_registry(app.home, repository)
    app.types("apply")
    on_another_machine(app, VALUES[value])
    (app.home / "repositories.yaml").rename(app.home / "elsewhere.yaml")
    pod.environment = app.environment

    pod.start()
    until(lambda: not pod.is_running or "registry" in pod.health()["components"], details=pod.log_tail)
    assert pod.is_running, pod.log_tail()

    assert pod.health()["components"]["registry"]["status"] == "ok"
    assert app.lists("repos", "list")
    assert pod.is_running, pod.log_tail()
