"""GitLab is asked as the reader, and only what it answers completely counts as an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from reposync.access.gitlab import GitLabRights, Standing
from reposync.errors import ReaderRefused, RepoSyncError, RightsUnavailable
from tests.fixtures.gitlab_server import OtherHost
from tests.integration.access.conftest import TOKEN, People

OPEN = '{"data": {"currentUser": {"id": "gid://gitlab/User/101", "username": "ada"}, "projects": {"nodes": [%s]}}}'
NODE = '{"id": "gid://gitlab/Project/%d", "userPermissions": {"adminProject": %s}, "repository": %s}'
REPOSITORY = '{"__typename": "Repository"}'


async def test_a_reader_gets_the_projects_whose_code_gitlab_shows_them_and_those_that_they_maintain(
    people: People, rights: GitLabRights
) -> None:
    for number, level in ((1, 40), (2, 20), (3, 10)):
        people.project(number, ada=level)
    people.project(4)
    people.project(5).visibility = "internal"

    answer = await rights.ask(TOKEN, [1, 2, 3, 4, 5, 99])

    assert (answer.user_id, answer.username) == (people.ada.id, "ada")
    assert (answer.readable, answer.maintained) == ({1, 2, 5}, {1})


async def test_a_thousand_projects_cost_ten_requests_and_a_refused_token_one(
    people: People, rights: GitLabRights
) -> None:
    for number in range(1, 1_001):
        people.project(number, ada=20 if number % 2 else 10)
    people.forget()

    answer = await rights.ask(TOKEN, range(1, 1_001))

    assert answer.readable == set(range(1, 1_001, 2))
    assert people.questions == 10
    people.forget()
    with pytest.raises(ReaderRefused):
        await rights.ask("glpat-of-nobody", range(1, 1_001))
    assert people.questions == 1


async def test_members_of_a_group_are_those_of_groups_above_and_of_invited_groups_and_visibility_proves_nothing(
    people: People, rights: GitLabRights
) -> None:
    server, ada = people.gitlab.rights, people.ada
    server.add_group("company", {ada.id: 10})
    server.add_group("company/platform")
    server.add_group("open").visibility = "public"
    server.add_group("shared").shares["company"] = 30
    server.add_group("minimal", {ada.id: 5})
    server.add_group("closed")

    asked = ["company", "company/platform", "open", "shared", "minimal", "closed", "missing"]
    answer = await rights.ask(TOKEN, [], asked)

    assert answer.groups == {"company", "company/platform", "shared"}


@pytest.mark.parametrize("state", ["blocked", "deactivated"])
async def test_a_user_who_may_not_sign_in_is_refused(people: People, rights: GitLabRights, state: Any) -> None:
    people.project(1, ada=50)
    people.ada.state = state

    with pytest.raises(ReaderRefused):
        await rights.ask(TOKEN, [1])


@pytest.mark.parametrize("token", ["", "short", "with space in it", "glpat-\r\nHost: x", "ü" * 20, "x" * 501])
async def test_what_is_no_token_is_refused_without_a_question(people: People, rights: GitLabRights, token: str) -> None:
    with pytest.raises(ReaderRefused):
        await rights.ask(token, [1])
    assert people.questions == 0


def answers(status: int, body: str, **options: Any) -> Callable[[People], object]:
    return lambda people: people.gitlab.faults.answer(status, body, path="/api/graphql", times=None, **options)


NO_ANSWERS = {
    "errors beside data": answers(200, '{"errors": [{"message": "Timeout on Project.repository"}], ' + OPEN[1:] % ""),
    "half of the batch with errors": answers(
        200, '{"errors": [{"message": "Timeout"}], ' + OPEN[1:] % (NODE % (1, "true", REPOSITORY))
    ),
    "anonymous": answers(200, '{"data": {"currentUser": null, "projects": {"nodes": []}}}'),
    "no projects": answers(200, '{"data": {"currentUser": {"id": "gid://gitlab/User/9", "username": "ada"}}}'),
    "null projects": answers(200, (OPEN % "").replace('{"nodes": []}', "null")),
    "a node without permissions": answers(200, OPEN % '{"id": "gid://gitlab/Project/1", "repository": null}'),
    "a node that is null": answers(200, OPEN % "null"),
    "a flag as a text": answers(200, OPEN % (NODE % (1, '"yes"', REPOSITORY))),
    "a repository as a flag": answers(200, OPEN % (NODE % (1, "true", "true"))),
    "an id of another kind": answers(200, OPEN % (NODE % (1, "true", REPOSITORY)).replace("Project/", "Group/")),
    "a number for a user": answers(200, (OPEN % "").replace('"gid://gitlab/User/101"', "101")),
    "an array": answers(200, "[]"),
    "no JSON": answers(200, '{"data": '),
    "nested deeply": answers(200, "[" * 100_000),
    "a login page": answers(200, "<html>Sign in</html>", media_type="text/html"),
    "a proxy's 403": answers(403, "<html>Forbidden</html>", media_type="text/html"),
    "too large a query": answers(422, '{"errors": [{"message": "Query too large"}]}'),
    "a rate limit": answers(429, "Retry later", headers={"Retry-After": "30"}),
    "a bad gateway": answers(502, "<html>502</html>", media_type="text/html"),
    "an internal error": answers(500, '{"errors": [{"message": "Internal server error"}]}'),
    "too much": answers(200, " " * 1_000_001 + OPEN % ""),
    "a missing endpoint": answers(404, '{"error": "404 Not Found"}'),
}


@pytest.mark.parametrize("fault", NO_ANSWERS.values(), ids=NO_ANSWERS)
async def test_what_is_no_answer_of_gitlab_is_neither_yes_nor_no(
    people: People, rights: GitLabRights, fault: Callable[[People], object]
) -> None:
    people.project(1, ada=50)
    fault(people)

    with pytest.raises(RightsUnavailable):
        await rights.ask(TOKEN, [1])


async def test_projects_that_were_not_asked_for_are_ignored(people: People, rights: GitLabRights) -> None:
    NO_ANSWERS["anonymous"](people)
    people.gitlab.faults.clear()
    body = OPEN % ", ".join(NODE % (number, "true", REPOSITORY) for number in (1, 2, 3))
    answers(200, body)(people)

    answer = await rights.ask(TOKEN, [2, 7])

    assert (answer.readable, answer.maintained) == ({2}, {2})


async def test_two_users_in_the_answers_to_one_question_are_no_answer(people: People, rights: GitLabRights) -> None:
    people.gitlab.faults.answer(200, (OPEN % "").replace("101", "7"), path="/api/graphql", nth=2)

    with pytest.raises(RightsUnavailable, match="several users"):
        await rights.ask(TOKEN, range(1, 150))


# Reasons --------------------------------------------------------------------------------------------------------------


async def test_a_standing_is_the_highest_role_and_the_visibility_of_what_gitlab_shows(
    people: People, rights: GitLabRights
) -> None:
    people.project(1, ada=30)
    people.project(2).visibility = "internal"
    people.project(3)
    people.gitlab.rights.add_group("group", {people.ada.id: 5})

    found = await rights.standings(TOKEN, people.ada.id, [1, 2, 3, 99])

    assert found == {1: Standing("private", 30), 2: Standing("internal", 0)}


async def test_a_hundred_reasons_cost_a_request_and_none_cost_none(people: People, rights: GitLabRights) -> None:
    for number in range(1, 251):
        people.project(number, ada=20)
    people.forget()

    assert await rights.standings(TOKEN, people.ada.id, []) == {}
    assert people.questions == 0
    assert len(await rights.standings(TOKEN, people.ada.id, range(1, 251))) == 250
    assert people.questions == 3


STANDINGS = (
    '{"data": {"currentUser": {"id": "gid://gitlab/User/101"}, "projects": {"nodes": '
    '[{"id": "gid://gitlab/Project/1", "visibility": %s, "maxAccessLevel": {"integerValue": %s}}]}}}'
)


async def test_an_answer_about_projects_that_were_not_asked_for_explains_nothing(
    people: People, rights: GitLabRights
) -> None:
    answers(200, STANDINGS % ('"public"', "null"))(people)
    assert await rights.standings(TOKEN, 101, [1, 2]) == {1: Standing("public", 0)}
    assert await rights.standings(TOKEN, 101, [2]) == {}


@pytest.mark.parametrize(
    "body",
    [
        STANDINGS % ('"public"', '"30"'),
        STANDINGS % ('"public"', "true"),
        STANDINGS % ('"<b>secret</b>"', "30"),
        STANDINGS % ("null", "30"),
        (STANDINGS % ('"public"', "30")).replace("User/101", "User/7"),
        (STANDINGS % ('"public"', "30")).replace('{"id": "gid://gitlab/User/101"}', "null"),
        '{"errors": [{"message": "Timeout"}], ' + (STANDINGS % ('"public"', "30"))[1:],
        "<html>Sign in</html>",
    ],
)
async def test_what_is_no_answer_explains_nothing(people: People, rights: GitLabRights, body: str) -> None:
    answers(200, body)(people)

    with pytest.raises(RightsUnavailable):
        await rights.standings(TOKEN, 101, [1])


async def test_the_token_goes_nowhere_else(people: People, rights: GitLabRights) -> None:
    with OtherHost() as other:
        for status in (301, 302, 307, 308):
            people.gitlab.faults.redirect(other.url, status=status, path="/api/")
            with pytest.raises(RightsUnavailable):
                await rights.ask(TOKEN, [1])
        people.gitlab.faults.redirect(other.url, path="/groups/")
        with pytest.raises(RightsUnavailable):
            await rights.ask(TOKEN, [], ["group"])
        assert other.requests == []


async def test_no_error_repeats_the_token(people: People, rights: GitLabRights) -> None:
    for status, kind in ((401, ReaderRefused), (502, RightsUnavailable), (302, RightsUnavailable)):
        people.gitlab.faults.answer(status, TOKEN, path="/api/")
        with pytest.raises(kind) as caught:
            await rights.ask(TOKEN, [1])
        error: BaseException | None = caught.value
        assert isinstance(error, RepoSyncError)
        assert TOKEN not in str(error)
