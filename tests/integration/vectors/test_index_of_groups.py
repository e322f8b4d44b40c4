"""A repository that is renamed keeps its points; they say its new name, and link to its new place."""

from __future__ import annotations

import dataclasses

from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import FileWrite, SearchHit, SearchQuery
from tests.fixtures.points import SPEC, dense, file, scope, sparse

OLD = "https://gitlab.example.com/platform/payments"
NEW = "https://gitlab.example.com/core/billing%20api"


def linked(path: str, *texts: str) -> FileWrite:
    """A file of a GitLab project, with links as the source makes them."""
    made = file(path, *texts)
    points = [
        dataclasses.replace(point, url=f"{OLD}/-/blob/HEAD/-/{path}#L{point.start_line}") for point in made.points
    ]
    return dataclasses.replace(made, points=points)


async def hits(index: QdrantIndex, text: str, repository: str | None = None) -> list[SearchHit]:
    found = await index.search(SearchQuery(sparse=sparse(text), dense=dense(text)))
    return [hit for hit in found if repository in (None, hit.repository)]


async def test_a_renamed_repository_is_found_under_its_new_name_alone(index: QdrantIndex) -> None:
    await index.ensure(SPEC)
    await index.replace_files(scope(), [linked("a.py", "alpha", "beta"), linked("b.py", "gamma")])
    await index.replace_files(scope("other"), [linked("a.py", "alpha")])
    before = await index.known([each.content_hash for each in linked("a.py", "alpha", "beta").points])

    await index.rename_repository(scope().repository_id, "billing", links=NEW)

    assert await hits(index, "alpha", "payments") == []
    found = await hits(index, "alpha", "billing")
    assert {hit.url for hit in found} == {
        f"{NEW}/-/blob/HEAD/-/a.py#L1",
        f"{NEW}/-/blob/HEAD/-/a.py#L11",
        f"{NEW}/-/blob/HEAD/-/b.py#L1",
    }
    assert {(hit.commit, hit.language) for hit in found} == {("c" * 40, "python")}
    assert {hit.url for hit in await hits(index, "alpha", "other")} == {f"{OLD}/-/blob/HEAD/-/a.py#L1"}
    after = await index.known(list(before))
    assert {key: value.tolist() for key, value in after.items()} == {k: v.tolist() for k, v in before.items()}
    assert await index.count(scope().repository_id, epoch=1) == 3


async def test_a_rename_can_be_repeated_and_taken_back(index: QdrantIndex) -> None:
    await index.ensure(SPEC)
    await index.replace_files(scope(), [linked("a.py", "alpha")])
    for name, links in (("billing", NEW), ("billing", NEW), ("payments", OLD)):
        await index.rename_repository(scope().repository_id, name, links=links)

    (hit,) = await hits(index, "alpha", "payments")
    assert hit.url == f"{OLD}/-/blob/HEAD/-/a.py#L1"


async def test_links_of_other_hosts_and_missing_ones_stay_as_they_are(index: QdrantIndex) -> None:
    await index.ensure(SPEC)
    other = file("b.py", "beta")
    without = dataclasses.replace(other, points=[dataclasses.replace(point, url=None) for point in other.points])
    await index.replace_files(scope(), [file("a.py", "alpha"), without])

    await index.rename_repository(scope().repository_id, "billing", links=NEW)

    assert {hit.url for hit in await hits(index, "alpha", "billing")} == {"https://gitlab.example/a.py#L1", None}


async def test_thousands_of_points_get_their_name_and_links(index: QdrantIndex) -> None:
    await index.ensure(SPEC)
    await index.replace_files(scope(), [linked(f"{number}.py", f"text {number}") for number in range(4500)])

    await index.rename_repository(scope().repository_id, "billing", links=NEW)

    pages = [page async for page in index.points(scope().repository_id)]
    payloads = [point.payload["metadata"] for page in pages for point in page]
    assert len(payloads) == 4500
    assert {each["repository"] for each in payloads} == {"billing"}
    assert {each["url"].partition("/-/")[0] for each in payloads} == {NEW}
