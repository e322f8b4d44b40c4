"""Figures of evaluations as they are kept: the newest of each repository."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from reposync.errors import RepositoryNotFound
from reposync.store.evaluations import MOST_KEPT, Evaluations
from reposync.visible import Visible
from tests.integration.store.conftest import ON_EVERY_DATABASE, WHEN, Store

pytestmark = ON_EVERY_DATABASE


def values(number: int) -> dict[str, Any]:
    figures = {"words": {"mrr": {"mean": 0.5, "low": 0.4, "high": 0.6}}}
    counts = {"commit_sha": "a" * 40, "states": number, "model": None, "questions": 3}
    return {"id": f"{number:04}", "at": WHEN + timedelta(minutes=number), "figures": figures, **counts}


async def test_the_newest_of_each_repository_are_kept(store: Store) -> None:
    evaluations = Evaluations(store.database)
    row, other = await store.repository(), await store.repository("web")
    await evaluations.add(other.id, values(9_999))
    for number in range(MOST_KEPT + 3):
        await evaluations.add(row.id, values(number))

    kept = await evaluations.of(row.id, MOST_KEPT + 10)

    assert [each.states for each in kept] == list(range(MOST_KEPT + 2, 2, -1))
    assert kept[0].figures == values(0)["figures"] and kept[0].at == WHEN + timedelta(minutes=MOST_KEPT + 2)
    assert len(await evaluations.of(other.id, 10)) == 1
    assert len(await evaluations.of(row.id, 5)) == 5


async def test_one_of_a_repository_that_is_gone_is_not_kept(store: Store) -> None:
    with pytest.raises(RepositoryNotFound, match="removed during the evaluation"):
        await Evaluations(store.database).add("no-such-id", values(1))


async def test_others_do_not_see_it(store: Store) -> None:
    row = await store.repository()
    await Evaluations(store.database).add(row.id, values(1))
    limited = Evaluations(store.database.limited(Visible(frozenset({"another"}))))
    assert await limited.of(row.id, 10) == []
