from __future__ import annotations

import asyncio

import pytest

from reposync.api.coalescing import Coalesced
from reposync.errors import StoreUnavailable


class Questions:
    """Counts what is asked; an answer comes when it is let through."""

    def __init__(self) -> None:
        self.put = 0
        self.through = asyncio.Semaphore(0)
        self.fails = False

    async def __call__(self) -> int:
        self.put += 1
        number = self.put
        await self.through.acquire()
        if self.fails:
            raise StoreUnavailable(f"no answer to {number}")
        return number


@pytest.fixture
async def questions() -> Questions:
    return Questions()


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_who_comes_while_a_question_is_under_way_shares_the_next_one(questions: Questions) -> None:
    coalesced: Coalesced[int] = Coalesced(4)
    first = asyncio.create_task(coalesced.ask("a", questions))
    await turns()
    later = [asyncio.create_task(coalesced.ask("a", questions)) for _ in range(50)]
    await turns()
    assert questions.put == 1

    questions.through.release()
    await turns()
    latest = asyncio.create_task(coalesced.ask("a", questions))
    await turns()
    assert (await first, questions.put) == (1, 2)
    for _ in range(2):
        questions.through.release()

    assert set(await asyncio.gather(*later)) == {2}
    assert await latest == 3
    assert not coalesced._next and not len(coalesced._turns)


async def test_other_questions_do_not_wait(questions: Questions) -> None:
    coalesced: Coalesced[int] = Coalesced(4)
    asked = [asyncio.create_task(coalesced.ask(key, questions)) for key in "abc"]
    await turns()

    assert questions.put == 3
    for _ in range(3):
        questions.through.release()
    assert sorted(await asyncio.gather(*asked)) == [1, 2, 3]


async def test_a_failure_is_everybodys_and_not_tried_again_by_each(questions: Questions) -> None:
    coalesced: Coalesced[int] = Coalesced(4)
    questions.fails = True
    asked = [asyncio.create_task(coalesced.ask("a", questions)) for _ in range(5)]
    await turns()
    for _ in range(2):
        questions.through.release()

    found = await asyncio.gather(*asked, return_exceptions=True)

    assert [str(each) for each in found] == ["no answer to 1"] + ["no answer to 2"] * 4
    questions.fails = False
    questions.through.release()
    assert await coalesced.ask("a", questions) == 3


async def test_where_the_one_who_asks_is_cancelled_the_next_one_asks(questions: Questions) -> None:
    coalesced: Coalesced[int] = Coalesced(4)
    asked = [asyncio.create_task(coalesced.ask("a", questions)) for _ in range(4)]
    await turns()
    questions.through.release()
    await turns()
    assert questions.put == 2
    asked[1].cancel()
    await turns()
    questions.through.release()

    assert await asyncio.gather(asked[0], *asked[2:]) == [1, 3, 3]
