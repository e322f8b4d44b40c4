"""Between the look whether somebody maintains a repository and what they do to it, a different one gets its name."""

# ruff: noqa: F811 (fixtures are imported)
from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncGenerator, Iterator
from random import Random
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, event

from reposync.app.application import Application
from reposync.operations.core import Operation, Rule
from tests.fixtures.gitlab_server import User
from tests.fixtures.repositories import GitRepository
from tests.fixtures.rights_world import PROJECTS, RightsWorld, canary, sent
from tests.integration.access.test_over_http import ada, client, world  # noqa: F401
from tests.unit.test_operations import OPERATIONS

OWN, FOREIGN, FORMER = PROJECTS[1], PROJECTS[4], "platform/former"
BY_NAME = [each for each in OPERATIONS.values() if each.rule is Rule.MAINTAIN and "{name}" in each.path]
BODIES: dict[str, Any] = {"change": {"is_active": False}}


@pytest.fixture
async def app(world: RightsWorld) -> AsyncGenerator[Application, None]:
    """In which both repositories have a secret."""
    for name in (OWN, FOREIGN):
        token = f"glpat-{Random(name).randbytes(10).hex()}"
        GitRepository(world.path(name)).commit(
            {f"{canary(name)}_settings.py": f'TOKEN = "{token}"\n'.encode()}, message="Read the server with a token"
        )
    async with world.opened() as app:
        await world.index(app, OWN, FOREIGN)
        yield app


@contextlib.contextmanager
def renamed_after_the_look(world: RightsWorld) -> Iterator[list[str]]:
    """The first statement in a limited database that looks for the own repository is the last one before the other has
    its name. The statements after which they were renamed."""
    looks: list[str] = []

    def executed(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        if looks or not statement.startswith("WITH repositories") or OWN not in parameters:
            return
        looks.append(statement)
        with contextlib.closing(sqlite3.connect(world.folder / "state" / "reposync.db")) as database, database:
            for name, former in ((FORMER, OWN), (OWN, FOREIGN)):
                database.execute("UPDATE repositories SET name = ? WHERE name = ?", (name, former))

    event.listen(Engine, "after_cursor_execute", executed)
    try:
        yield looks
    finally:
        event.remove(Engine, "after_cursor_execute", executed)


@pytest.mark.parametrize("operation", BY_NAME, ids=lambda operation: operation.name)
async def test_what_is_done_is_done_to_the_repository_that_was_looked_at(
    world: RightsWorld, app: Application, client: httpx.AsyncClient, ada: User, operation: Operation[Any, Any]
) -> None:
    world.projects[1].members[ada.id] = 40
    own, foreign = await app.repositories.get(OWN), await app.repositories.get(FOREIGN)
    path = f"/api/v1{operation.path.format(name=OWN)}"

    with renamed_after_the_look(world) as looks:
        answer = await client.request(operation.method, path, headers=sent(ada), json=BODIES.get(operation.name))

    assert looks and (await app.repositories.by_id(foreign.id)).name == OWN
    assert answer.status_code in (200, 202), answer.text
    assert canary(FOREIGN) not in answer.text and (foreign.last_commit or "-") not in answer.text
    assert FORMER in answer.text
    assert (await app.repositories.by_id(foreign.id)).is_active
    assert await app.history.active(foreign.id) == []
    is_changed = [not (await app.repositories.by_id(own.id)).is_active, bool(await app.history.active(own.id))]
    has_run = operation.method == "POST" and operation.name != "evaluate_history"
    assert is_changed == [operation.name == "change", has_run]


def test_every_operation_on_a_maintained_repository_is_among_them() -> None:
    assert {each.name for each in BY_NAME} >= {"change", "purge", "repair", "repository_secrets", "sync", "verify"}
