"""The test server's model of GitLab's rules against the table of `read_code` in GitLab's own policies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.gitlab_server.plumbing import BareRepository
from tests.fixtures.gitlab_server.rights import Rights, User
from tests.fixtures.gitlab_server.state import Project

PLACES = ("private E", "private M", "internal E", "internal M", "public E", "public M")
TABLE = """
anonymous            no  no  no  no  yes no
stranger             no  no  yes no  yes no
external stranger    no  no  no  no  yes no
minimal              no  no  yes no  yes no
guest                no  no  yes yes yes yes
external guest       no  no  no  no  yes yes
guest with role      yes yes yes yes yes yes
planner              yes yes yes yes yes yes
older planner        no  no  yes yes yes yes
external planner     yes yes yes yes yes yes
older external planner no no no no yes yes
reporter             yes yes yes yes yes yes
security manager     yes yes yes yes yes yes
developer            yes yes yes yes yes yes
maintainer           yes yes yes yes yes yes
owner                yes yes yes yes yes yes
admin                yes yes yes yes yes yes
"""
LEVELS = {
    "minimal": 5,
    "guest": 10,
    "planner": 15,
    "reporter": 20,
    "security manager": 25,
    "developer": 30,
    "maintainer": 40,
    "owner": 50,
}


def rows() -> list[tuple[str, str, bool]]:
    found = []
    for line in TABLE.strip().splitlines():
        *words, _, _, _, _, _, _ = line.split()
        cells = line.split()[-6:]
        found += [(" ".join(words), place, cell == "yes") for place, cell in zip(PLACES, cells, strict=True)]
    return found


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(7, "group/sub/app", BareRepository(tmp_path))


@pytest.mark.parametrize(("who", "place", "may_read"), rows())
def test_the_model_reads_code_as_the_table_of_gitlab(project: Project, who: str, place: str, may_read: bool) -> None:
    rights = Rights("18.6.2-ee" if "older" in who else "18.7.0-ee")
    project.visibility = place.split()[0]
    project.repository_access_level = "private" if place.endswith("M") else "enabled"
    user: User | None = rights.add_user("ada", external="external" in who, admin=who == "admin")
    assert user is not None
    role = who.removeprefix("older ").removeprefix("external ").removesuffix(" with role")
    if role in LEVELS:
        project.members[user.id] = LEVELS[role]
    if who == "guest with role":
        project.code_readers.add(user.id)
    if who == "anonymous":
        user = None

    assert rights.reads_code(user, project) is may_read
    project.repository_access_level = "disabled"
    assert not rights.reads_code(user, project)
    project.repository_access_level, project.label_denied = "enabled", True
    assert not rights.reads_code(user, project)
    project.label_denied, project.deleted = False, True
    assert not rights.reads_code(user, project)


def test_the_highest_level_of_all_ways_to_be_a_member_counts(project: Project) -> None:
    rights = Rights("18.5.0-ee")
    user = rights.add_user("ada")
    top, invited = rights.add_group("group", {user.id: 10}), rights.add_group("guild", {user.id: 40})
    rights.add_group("group/sub")
    assert rights.level(user, project) == 10

    project.shares["guild"] = 20
    assert (rights.level(user, project), rights.administers(user, project)) == (20, False)
    rights.groups["group/sub"].share_lock = True
    assert rights.level(user, project) == 10
    top.shares["guild"] = 50
    assert (rights.level(user, project), rights.administers(user, project)) == (40, True)
    invited.members.clear()
    assert rights.level(user, project) == 10
    rights.move_group("group/sub", "elsewhere")
    project.move("elsewhere/app")
    assert rights.level(user, project) == 0
