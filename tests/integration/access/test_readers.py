"""An answer of GitLab counts for a minute, while GitLab is away for five, and until something changes."""

from __future__ import annotations

import asyncio

import pytest

from reposync.access.changes import EVERYTHING_CHANGED, RightsChange
from reposync.access.readers import Readers, Wanted
from reposync.access.strangers import MAX_QUESTIONS, MAX_WAITING, REFUSED_PER_MINUTE
from reposync.errors import ReaderRefused, RightsUnavailable, TooManyUnknownTokens
from tests.fixtures.pods import until
from tests.fixtures.rights_world import Seconds
from tests.integration.access.conftest import TOKEN, People, read


async def test_an_active_reader_costs_one_question_a_minute_and_an_inactive_one_none(
    people: People, readers: Readers, seconds: Seconds
) -> None:
    people.project(1, ada=20)
    for _ in range(10):
        reader = await read(readers, 1)
        assert reader.readable == {1}
        seconds.now += 11.9
    assert people.questions == 2
    seconds.now += 3_600
    assert people.questions == 2


async def test_a_removal_is_effective_after_a_minute_at_most(
    people: People, readers: Readers, seconds: Seconds
) -> None:
    project = people.project(1, ada=20)
    await read(readers, 1)
    project.members.clear()

    seconds.now += 59
    assert (await read(readers, 1)).readable == {1}
    seconds.now += 1
    assert (await read(readers, 1)).readable == set()


async def test_callers_at_the_same_time_share_one_question(people: People, readers: Readers) -> None:
    people.project(1, ada=20)
    gate = people.gitlab.faults.hold(path="/api/graphql")
    asking = [asyncio.ensure_future(read(readers, 1)) for _ in range(20)]
    await asyncio.to_thread(gate.arrived.wait)
    asking[0].cancel()
    gate.open()

    results = await asyncio.gather(*asking[1:])

    assert {reader.readable for reader in results} == {frozenset({1})}
    assert people.questions == 1


async def test_only_a_new_repository_is_asked_about(people: People, readers: Readers, seconds: Seconds) -> None:
    people.project(1, ada=20)
    people.project(2, ada=40)
    for number in range(3, 203):
        people.project(number)
    first = await read(readers, 1, *range(3, 203))
    people.forget()
    seconds.now += 29

    reader = await read(readers, 1, 2, *range(3, 203))

    assert (reader.readable, reader.maintained, reader.as_of) == ({1, 2}, {2}, first.as_of)
    assert people.questions == 1
    seconds.now += 31
    await read(readers, 1, 2, *range(3, 203))
    assert people.questions == 1 + 3


async def test_the_last_answer_counts_for_five_minutes_while_gitlab_is_away(
    people: People, readers: Readers, seconds: Seconds
) -> None:
    people.project(1, ada=20)
    await read(readers, 1)
    rule = people.gitlab.faults.answer(502, path="/api/", times=None)

    for _ in range(5):
        seconds.now += 60
        assert (await read(readers, 1)).readable == {1}
        assert (await read(readers, 1, 2)).readable == {1}
    assert rule.struck == 5
    seconds.now += 1
    with pytest.raises(RightsUnavailable):
        await read(readers, 1)
    people.gitlab.faults.clear()
    assert (await read(readers, 1)).readable == {1}


async def test_a_gitlab_that_limits_its_rate_is_asked_when_it_says(
    people: People, readers: Readers, seconds: Seconds
) -> None:
    people.project(1, ada=20)
    await read(readers, 1)
    rule = people.gitlab.faults.answer(429, "Retry later", headers={"Retry-After": "30"}, path="/api/", times=None)
    seconds.now += 60
    for _ in range(29):
        assert (await read(readers, 1)).readable == {1}
        seconds.now += 1
    assert rule.struck == 1
    seconds.now += 1
    await read(readers, 1)
    assert rule.struck == 2


async def test_a_reader_who_never_had_an_answer_gets_an_error_while_gitlab_is_away(
    people: People, readers: Readers
) -> None:
    people.gitlab.faults.answer(502, path="/api/", times=1)
    with pytest.raises(RightsUnavailable):
        await read(readers, 1)
    people.project(1, ada=20)
    assert (await read(readers, 1)).readable == {1}


async def test_a_revoked_token_ends_at_the_next_question(people: People, readers: Readers, seconds: Seconds) -> None:
    people.project(1, ada=20)
    await read(readers, 1)
    people.gitlab.tokens[TOKEN].revoked = True
    seconds.now += 60
    for _ in range(3):
        with pytest.raises(ReaderRefused):
            await read(readers, 1)
    assert people.questions == 2
    people.gitlab.faults.answer(502, path="/api/", times=None)
    seconds.now += 60
    with pytest.raises(RightsUnavailable):
        await read(readers, 1)


# Changes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("everything", [False, True])
async def test_a_change_is_effective_at_once_and_costs_others_nothing(
    people: People, readers: Readers, everything: bool
) -> None:
    people.adds("ben")
    one, two = people.project(1, ada=20, ben=20), people.project(2, ada=20)
    for token in (TOKEN, "glpat-of-ben"):
        await read(readers, 1, 2, token=token)
    one.members.clear()
    two.members.clear()
    people.forget()

    readers.drop(EVERYTHING_CHANGED if everything else RightsChange(people.ada.id, 1))

    ada, ben = await read(readers, 1, 2), await read(readers, 1, 2, token="glpat-of-ben")
    assert (ada.readable, ben.readable) == ((set(), set()) if everything else ({2}, {1}))
    assert people.questions == (2 if everything else 1)


async def test_a_change_of_a_project_is_asked_of_that_project_alone(people: People, readers: Readers) -> None:
    projects = [people.project(number, ada=20) for number in range(1, 202)]
    everything = range(1, 202)
    await read(readers, *everything)
    projects[0].repository_access_level = "disabled"
    people.forget()

    readers.drop(RightsChange(project_id=1))

    assert (await read(readers, *everything)).readable == set(range(2, 202))
    assert people.questions == 1


async def test_what_was_dropped_does_not_come_back_while_gitlab_is_away(people: People, readers: Readers) -> None:
    people.project(1, ada=20)
    people.project(2, ada=20)
    await read(readers, 1, 2)
    people.gitlab.faults.answer(502, path="/api/", times=None)

    readers.drop(RightsChange(project_id=1))
    assert (await read(readers, 1, 2)).readable == {2}
    readers.drop(EVERYTHING_CHANGED)
    with pytest.raises(RightsUnavailable):
        await read(readers, 1, 2)


async def test_an_answer_from_before_a_change_is_not_kept(people: People, readers: Readers) -> None:
    project = people.project(1, ada=20)
    gate = people.gitlab.faults.hold(path="/api/graphql", after_bytes=None)
    early = asyncio.ensure_future(read(readers, 1))
    await asyncio.to_thread(gate.arrived.wait)

    readers.drop(RightsChange(people.ada.id))
    late = asyncio.ensure_future(read(readers, 1))
    gate.open()
    await early
    assert (await late).readable == {1}
    project.members.clear()
    readers.drop(RightsChange(people.ada.id, 1))
    assert (await read(readers, 1)).readable == set()


# Unknown tokens -------------------------------------------------------------------------------------------------------


async def test_a_client_may_send_thirty_bad_tokens_a_minute(people: People, readers: Readers, seconds: Seconds) -> None:
    async def refused(number: int, address: str = "10.0.0.1") -> type[Exception]:
        with pytest.raises((ReaderRefused, TooManyUnknownTokens)) as caught:
            await read(readers, 1, token=f"glpat-guess-{number}", address=address)
        return caught.type

    outcomes = [await refused(number) for number in range(REFUSED_PER_MINUTE + 5)]
    assert outcomes == [ReaderRefused] * REFUSED_PER_MINUTE + [TooManyUnknownTokens] * 5
    assert people.questions == REFUSED_PER_MINUTE
    assert await refused(1) is ReaderRefused
    assert await refused(900, "10.0.0.2") is ReaderRefused
    seconds.now += 2.1
    assert [await refused(901), await refused(902)] == [ReaderRefused, TooManyUnknownTokens]
    assert (await read(readers, token="glpat-of-ada", address="10.0.0.3")).username == "ada"


async def test_addresses_of_one_ipv6_network_are_one_client(people: People, readers: Readers) -> None:
    for number in range(REFUSED_PER_MINUTE):
        with pytest.raises(ReaderRefused):
            await read(readers, 1, token=f"glpat-guess-{number}", address=f"2001:db8::{number:x}")
    with pytest.raises(TooManyUnknownTokens):
        await read(readers, 1, token="glpat-guess-again", address="2001:db8::ffff")


async def test_a_hundred_good_tokens_of_one_client_are_let_in_at_once(people: People, readers: Readers) -> None:
    names = [f"person-{number}" for number in range(100)]
    for name in names:
        people.adds(name)

    found = await asyncio.gather(*(read(readers, token=f"glpat-of-{name}") for name in names))

    assert [reader.username for reader in found] == names


async def test_a_flood_of_bad_tokens_asks_little_and_holds_up_no_known_reader(people: People, readers: Readers) -> None:
    people.project(1, ada=20)
    await read(readers, 1)
    people.forget()
    gate = people.gitlab.faults.hold(path="/api/graphql", times=MAX_QUESTIONS)
    flood = [
        asyncio.ensure_future(read(readers, 1, token=f"glpat-guess-{number}", address=f"10.1.{number % 250}.1"))
        for number in range(10_000)
    ]
    await asyncio.to_thread(until, lambda: people.questions == MAX_QUESTIONS)

    readers.drop(EVERYTHING_CHANGED)
    known = await read(readers, 1)

    assert known.readable == {1}
    assert people.questions <= MAX_QUESTIONS + 1
    gate.open()
    outcomes = await asyncio.gather(*flood, return_exceptions=True)
    kinds = [type(each) for each in outcomes]
    assert set(kinds) == {ReaderRefused, TooManyUnknownTokens}
    assert people.questions == kinds.count(ReaderRefused) + 1 <= MAX_QUESTIONS + MAX_WAITING + 1
    limits = [each.retry_after_seconds for each in outcomes if isinstance(each, TooManyUnknownTokens)]
    assert all(limits)


async def test_tokens_are_not_kept(people: People, readers: Readers) -> None:
    await readers.reader(TOKEN, Wanted(frozenset({1})))

    def texts(value: object, depth: int = 0) -> str:
        if depth > 6 or not hasattr(value, "__dict__"):
            return repr(value)
        return "".join(texts(each, depth + 1) for each in vars(value).values())

    assert TOKEN not in texts(readers)
