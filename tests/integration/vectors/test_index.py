"""The methods of the index, on every target."""

import asyncio
import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from qdrant_client import AsyncQdrantClient, models

from reposync.embedding.port import EmbeddingSpec
from reposync.errors import IndexMismatch, UsageError
from reposync.symbol import Symbol
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import (
    LATEST_EPOCH,
    FileWrite,
    IndexQuery,
    IndexSettings,
    PointMissing,
    point_id,
)
from tests.fixtures.points import SPARSE_ALONE, SPEC, WINDOWED, dense, file, scope, sparse
from tests.integration.vectors.conftest import OpenIndex


async def stored_ids(index: QdrantIndex, repository: str = "payments") -> set[str]:
    pages = [page async for page in index.point_ids(scope(repository).version_id)]
    ids = [each for page in pages for each in page]
    assert len(ids) == len(set(ids))
    return set(ids)


def ids_of(*files: FileWrite, repository: str = "payments") -> set[str]:
    return {
        point_id(scope(repository).version_id, each.path, each.blob_sha, point.chunk_index)
        for each in files
        for point in each.points
    }


async def paths_found(index: QdrantIndex, text: str, **more: object) -> list[str]:
    query = IndexQuery(sparse=sparse(text), dense=dense(text), **more)  # type: ignore[arg-type]
    return [hit.path for hit in await index.search(query)]


# The collection ----------------------------------------------------------------------------------------------------


async def test_the_identity_stays_as_long_as_the_collection_does(
    opened: OpenIndex, settings: IndexSettings, client: AsyncQdrantClient
) -> None:
    indexes = [opened() for _ in range(8)]
    identities = await asyncio.gather(*(index.ensure(SPEC) for index in indexes))
    assert len(set(identities)) == 1, "processes that make the collection at once use the same one"
    assert await opened().ensure(SPEC) == identities[0]
    await client.delete_collection(settings.collection)
    assert await opened().ensure(SPEC) != identities[0]


async def test_a_collection_is_made_for_tenants_with_the_indexes_that_filters_need(
    opened: OpenIndex, settings: IndexSettings, client: AsyncQdrantClient
) -> None:
    await (await opened()._changes()).make(WINDOWED)  # its maker was killed before it made the indexes
    await opened().ensure(WINDOWED)
    made = await client.get_collection(settings.collection)
    names = "repository_id repository path path_tokens language content_hash epoch calls symbols[].name symbols[].kind"
    assert set(made.payload_schema) == {f"metadata.{each}" for each in names.split()}
    assert made.payload_schema["metadata.repository_id"].params.is_tenant is True  # type: ignore[union-attr]
    assert made.payload_schema["metadata.epoch"].data_type is models.PayloadSchemaType.INTEGER
    assert made.config.params.vectors["dense"].multivector_config is not None  # type: ignore[index]
    assert made.config.params.sparse_vectors["sparse"].modifier is models.Modifier.IDF  # type: ignore[index]


async def test_a_collection_of_a_later_layout_is_a_mismatch(
    index: QdrantIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("reposync.vectors.collection.LAYOUT", 99)
        await index.ensure(SPEC)
    with pytest.raises(IndexMismatch, match="schema revision 99"):
        await index.ensure(SPEC)


@pytest.mark.parametrize(
    "configured",
    [
        dataclasses.replace(SPEC, model="larger-model"),
        dataclasses.replace(SPEC, dimension=16),
        dataclasses.replace(SPEC, window_chars=800),
        dataclasses.replace(SPEC, document_prefix="passage: "),
        dataclasses.replace(SPEC, document_options="input_type=document"),
        SPARSE_ALONE,
    ],
    ids=str,
)
async def test_a_different_embedding_model_is_a_mismatch_that_names_both(
    opened: OpenIndex, configured: EmbeddingSpec
) -> None:
    await opened().ensure(SPEC)
    with pytest.raises(IndexMismatch, match=r"test-model \(test, 8 dimensions\).*is expected") as raised:
        await opened().ensure(configured)
    assert "delete it" in str(raised.value)


async def test_a_collection_of_a_different_program_is_a_mismatch_and_stays_as_it_is(
    index: QdrantIndex, settings: IndexSettings, client: AsyncQdrantClient
) -> None:
    dense_alone = {"dense": models.VectorParams(size=8, distance=models.Distance.COSINE)}
    await client.create_collection(settings.collection, dense_alone)
    for call in (index.ensure(SPEC), index.resolve()):
        with pytest.raises(IndexMismatch, match="was not made by reposync"):
            await call
    assert (await client.get_collection(settings.collection)).payload_schema == {}


# Writing -----------------------------------------------------------------------------------------------------------


async def test_a_writer_of_an_older_epoch_deletes_nothing_newer(index: QdrantIndex) -> None:
    await index.ensure(SPEC)
    newer = [file("a.py", "newer a"), file("b.py", "newer b")]
    await index.replace_files(scope(epoch=5), newer)
    stale = scope(epoch=4)
    late = file("a.py", "older a")
    await index.replace_files(stale, [late])
    await index.remove_files(stale, ["a.py", "b.py"])
    await index.remove_points(stale, list(ids_of(*newer)))
    assert await stored_ids(index) == ids_of(*newer)
    assert [await index.count("id-of-payments", epoch=epoch) for epoch in (4, 5)] == [0, 2]
    assert await index.count(epoch=5) == 2
    await index.remove_files(scope(epoch=5), ["a.py", "never-there.py"])
    await index.remove_files(scope(epoch=5), [])
    assert await stored_ids(index) == ids_of(newer[1])
    await index.remove_points(scope(epoch=5), list(ids_of(*newer)))
    assert await stored_ids(index) == set()


async def test_two_repositories_do_not_affect_each_other(index: QdrantIndex) -> None:
    await index.ensure(SPEC)
    mine, theirs = file("a.py", "same text"), file("a.py", "same text")
    await index.replace_files(scope("payments"), [mine])
    await index.replace_files(scope("billing"), [theirs])
    await index.remove_points(scope("billing"), list(ids_of(mine)))
    await index.replace_files(scope("billing", epoch=9), [file("a.py", "other text")])
    assert await stored_ids(index, "payments") == ids_of(mine)
    assert await index.count("id-of-billing") == 1
    await index.remove_files(scope("billing", epoch=9), ["a.py"])
    await index.remove_version("id-of-billing")
    assert (await index.count("id-of-billing"), await index.count("id-of-payments"), await index.count()) == (0, 1, 1)


async def test_thousands_of_points_are_stored_and_listed_in_pages(index: QdrantIndex) -> None:
    await index.ensure(SPARSE_ALONE)
    big = file("big.py", *(f"chunk {number}" for number in range(3_000)), spec=SPARSE_ALONE)
    many = [file(f"{number}.py", "text", spec=SPARSE_ALONE) for number in range(1_500)]
    await index.replace_files(scope(), [*many[:700], big, *many[700:]])
    assert await index.count() == 4_500
    assert await stored_ids(index) == ids_of(big, *many)
    shorter = file("big.py", *(f"chunk {number}" for number in range(600)), spec=SPARSE_ALONE)
    await index.replace_files(scope(epoch=2), [shorter])
    assert await stored_ids(index) == ids_of(shorter, *many)
    await index.remove_files(scope(epoch=2), [each.path for each in many])
    assert await stored_ids(index) == ids_of(shorter)


# Known vectors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [SPEC, WINDOWED], ids=["one vector", "windows"])
async def test_vectors_of_known_content_come_back_as_they_were_stored(index: QdrantIndex, spec: EmbeddingSpec) -> None:
    await index.ensure(spec)
    texts = [f"text {number}" for number in range(700)]
    await index.replace_files(scope(), [file(f"{number}.py", text, spec=spec) for number, text in enumerate(texts)])
    # Copies of one text must not hide the others.
    await index.replace_files(scope("copies"), [file("many.py", *["text 0"] * 300, spec=spec)])
    hashes = [file("x", text).points[0].content_hash for text in [*texts, "never stored"]]
    known = await index.known([*hashes, *hashes])
    assert set(known) == set(hashes[:-1])
    for text, content_hash in zip(texts[:50], hashes, strict=False):
        assert known[content_hash].dtype == np.float32
        np.testing.assert_allclose(known[content_hash], dense(text, rows=3 if spec.multivector else 1), atol=1e-6)
    assert await index.known([]) == {}
    assert await index.known(["never stored"]) == {}


# Search ------------------------------------------------------------------------------------------------------------


async def some_files(index: QdrantIndex, spec: EmbeddingSpec = SPEC) -> None:
    await index.ensure(spec)
    await index.replace_files(
        scope("payments"),
        [
            file("src/pay.py", "charge the card", spec=spec),
            file("src/deep/refund.py", "refund the card", spec=spec),
            file("tests/test_pay.py", "test the card", spec=spec),
            file("web/pay.ts", "card form", language="typescript", spec=spec),
        ],
    )
    await index.replace_files(scope("billing"), [file("src/card.py", "invoice the card", spec=spec)])


@pytest.mark.parametrize("spec", [SPEC, WINDOWED, SPARSE_ALONE], ids=["one vector", "windows", "sparse alone"])
async def test_the_best_file_comes_first(index: QdrantIndex, spec: EmbeddingSpec) -> None:
    await some_files(index, spec)
    query = IndexQuery(sparse=sparse("refund"), dense=dense("refund the card") if spec.dimension else None, limit=3)
    hits = await index.search(query)
    assert hits[0].path == "src/deep/refund.py"
    if spec.dimension:
        by_meaning = IndexQuery(sparse=sparse(""), dense=dense("card form"), limit=1)
        assert len(await index.search(by_meaning)) == 1
    assert len(hits) == (3 if spec.dimension else 1)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


async def test_files_with_a_word_are_named_and_whether_these_are_all(index: QdrantIndex) -> None:
    await index.ensure(SPEC)
    files = [file(f"src/{number}.py", "refund the card", "and again refund") for number in range(6)]
    await index.replace_files(scope(), [*files, file("src/none.py", "invoice")])
    await index.replace_files(scope("other"), [file("src/0.py", "refund")])
    mine = scope().version_id

    async def named(word: str, limit: int) -> tuple[set[tuple[str, str]], bool]:
        query = IndexQuery(sparse(word), versions=[mine], limit=limit)
        found, complete = await index.files_with_terms(query)
        assert len(found) == len(set(found))
        return set(found), complete

    assert await named("refund", 100) == ({(mine, f"src/{number}.py") for number in range(6)}, True)
    assert await named("nowhere", 100) == (set(), True)
    some, complete = await named("refund", 4)
    assert some < {(mine, f"src/{number}.py") for number in range(6)}
    assert not complete


async def test_search_is_limited_to_chunks_with_a_definition_of_that_name_and_kind(index: QdrantIndex) -> None:
    def defining(path: str, *symbols: Symbol) -> FileWrite:
        write = file(path, "parse text")
        return dataclasses.replace(write, points=[dataclasses.replace(each, symbols=symbols) for each in write.points])

    function, method = Symbol("parse", "function", 1, 5), Symbol("parse", "method", 1, 5)
    await index.ensure(SPEC)
    await index.replace_files(
        scope(),
        [
            defining("a.py", function, Symbol("Reader", "class", 6, 9)),
            defining("b.py", method, Symbol("read", "function", 6, 9)),
            defining("c.py"),
        ],
    )

    async def found(**filters: str) -> set[str]:
        return {hit.path for hit in await index.search(IndexQuery(sparse("parse text"), **filters))}

    assert await found() == {"a.py", "b.py", "c.py"}
    assert await found(symbol="parse") == {"a.py", "b.py"}
    assert await found(kind="function") == {"a.py", "b.py"}
    assert await found(symbol="parse", kind="function") == {"a.py"}, "one definition has both"
    assert await found(symbol="Parse") == set()
    (hit,) = await index.search(IndexQuery(sparse("parse text"), symbol="Reader"))
    assert list(hit.symbols) == [function, Symbol("Reader", "class", 6, 9)]


async def test_versions_that_are_hidden_are_not_found(index: QdrantIndex) -> None:
    await index.ensure(SPEC)
    await index.replace_files(scope("live"), [file("src/card.py", "the card")])
    await index.replace_files(scope("building"), [file("src/card.py", "the card of tomorrow")])
    hidden = [scope("building").version_id]
    for glob in (None, "src/"):
        assert await paths_found(index, "card", hidden=hidden, path_glob=glob) == ["src/card.py"]


async def test_search_is_limited_to_a_repository_and_a_language(index: QdrantIndex) -> None:
    await some_files(index)
    billing = scope("billing").version_id
    assert await paths_found(index, "card", versions=[billing]) == ["src/card.py"]
    every = [billing, scope("payments").version_id]
    assert sorted(await paths_found(index, "card", versions=every)) == sorted(await paths_found(index, "card"))
    assert await paths_found(index, "card", language="typescript") == ["web/pay.ts"]
    assert await paths_found(index, "card", versions=[billing], language="typescript") == []
    assert [len(await paths_found(index, "card", limit=limit)) for limit in (10, 2, 0)] == [5, 2, 0]


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("src/", ["src/card.py", "src/deep/refund.py", "src/pay.py"]),
        ("*.ts", ["web/pay.ts"]),
        ("/src/*.py", ["src/card.py", "src/pay.py"]),
        ("src/**/re*.py", ["src/deep/refund.py"]),
        ("deep", ["src/deep/refund.py"]),
        ("?ay.*", ["src/pay.py", "web/pay.ts"]),
        ("nowhere/", []),
    ],
)
async def test_a_path_glob_has_gitignore_semantics(index: QdrantIndex, glob: str, expected: Sequence[str]) -> None:
    await some_files(index)
    assert sorted(await paths_found(index, "the card", path_glob=glob)) == expected


async def test_a_rare_path_is_found_among_many(index: QdrantIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reposync.vectors.hybrid_search._MAX_CANDIDATES", 100)
    await index.ensure(SPEC)
    common = [file(f"lib/{number}.py", f"the card {number}") for number in range(900)]
    rare = [file(f"docs/{number}.md", f"unrelated {number}") for number in range(3)]
    await index.replace_files(scope(), [*common, *rare])
    for glob in ("docs/", "[0-2].md", "[d]ocs/*"):
        found = await paths_found(index, "the card", path_glob=glob, limit=3)
        assert sorted(found) == ["docs/0.md", "docs/1.md", "docs/2.md"]
    hits = await index.search(
        IndexQuery(sparse=sparse("the card 5"), dense=dense("the card 5"), path_glob="lib/", limit=5)
    )
    assert hits[0].text == "the card 5"
    assert await paths_found(index, "the card", path_glob="docs/", versions=[scope("billing").version_id]) == []
    assert await paths_found(index, "the card", path_glob="nowhere/", limit=3) == []


async def test_points_without_tokens_are_found_as_well(
    index: QdrantIndex, settings: IndexSettings, client: AsyncQdrantClient
) -> None:
    """As programs before 0.2 stored them."""
    await some_files(index)
    ids = list(ids_of(file("src/pay.py", "charge the card")))
    await client.set_payload(settings.collection, {"path_tokens": []}, ids, key="metadata")
    for glob in ("/src/*.py", "src/", "pay.*"):
        assert "src/pay.py" in await paths_found(index, "the card", path_glob=glob)
    assert await paths_found(index, "the card", path_glob="*.ts") == ["web/pay.ts"]


async def test_a_glob_that_matches_nothing_is_a_usage_error(index: QdrantIndex) -> None:
    await index.ensure(SPEC)
    with pytest.raises(UsageError, match="'!' matches nothing: it has no name in it"):
        await paths_found(index, "card", path_glob="!")


# What `verify` reads ----------------------------------------------------------------------------------------------

MINE = scope().version_id


async def test_points_are_counted_by_repository_and_named(
    index: QdrantIndex, settings: IndexSettings, client: AsyncQdrantClient
) -> None:
    await index.ensure(SPEC)
    await index.replace_files(scope(), [file("a.py", "one", "two")])
    await index.replace_files(scope("billing"), [file("a.py", "one")])
    foreign = models.PointStruct(id=7, vector={}, payload={"note": "of another program"})
    await client.upsert(settings.collection, [foreign], wait=True)

    assert await index.versions() == {MINE: 2, "id-of-billing": 1}
    assert await index.count() == 4
    assert (await index.names_of(MINE), await index.names_of("unknown")) == (["payments"], [])
    await index.remove_version(MINE)
    assert await index.versions() == {"id-of-billing": 1}


async def test_the_highest_later_epoch_is_found_and_values_that_are_not_epochs_are_ignored(
    index: QdrantIndex, settings: IndexSettings, client: AsyncQdrantClient
) -> None:
    await index.ensure(SPEC)
    for epoch in (1, 7, 4):
        await index.replace_files(scope(epoch=epoch), [file(f"{epoch}.py", "text")])
    await index.replace_files(scope("billing", epoch=90), [file("a.py", "text")])
    assert [await index.later_epoch(MINE, epoch) for epoch in (0, 4, 7)] == [7, 7, None]

    points, _ = await client.scroll(settings.collection, limit=10)
    for point, wrong in zip(points, (LATEST_EPOCH, "later", None, 2**60), strict=True):
        await client.set_payload(settings.collection, {"epoch": wrong}, [point.id], key="metadata", wait=True)
    assert await index.later_epoch(MINE, 0) is None


async def test_points_with_numbers_and_without_an_epoch_are_removed_by_their_ids(
    index: QdrantIndex, settings: IndexSettings, client: AsyncQdrantClient
) -> None:
    await index.ensure(SPEC)
    epochs = [{}, {"epoch": None}, {"epoch": "x"}, {"epoch": LATEST_EPOCH}, {"epoch": 9}]
    ours = {"repository_id": MINE, "path": "a.py"}
    points = [
        models.PointStruct(id=number, vector={}, payload={"metadata": ours | epoch})
        for number, epoch in enumerate(epochs)
    ]
    await client.upsert(settings.collection, points, wait=True)

    await index.remove_points(scope(epoch=8), list(range(5)))

    left = [number async for page in index.point_ids(MINE) for number in page]
    assert left == [4], "what a later run wrote stays"


# A renamed repository ---------------------------------------------------------------------------------------------

OLD = "https://gitlab.example.com/platform/payments"
NEW = "https://gitlab.example.com/core/billing%20api"


def linked(path: str, *texts: str) -> FileWrite:
    """A file of a GitLab project, with links as the source makes them."""
    made = file(path, *texts)
    points = [
        dataclasses.replace(point, url=f"{OLD}/-/blob/HEAD/-/{path}#L{point.start_line}") for point in made.points
    ]
    return dataclasses.replace(made, points=points)


async def urls(index: QdrantIndex, repository: str) -> set[str | None]:
    hits = await index.search(IndexQuery(sparse=sparse("alpha"), dense=dense("alpha"), limit=100))
    return {hit.url for hit in hits if hit.repository == repository}


async def test_a_renamed_repository_is_found_under_its_new_name_alone(index: QdrantIndex) -> None:
    await index.ensure(SPEC)
    files = [linked("a.py", "alpha", "beta"), linked("b.py", "gamma")]
    await index.replace_files(scope(), files)
    await index.replace_files(scope("other"), [linked("a.py", "alpha")])
    before = await index.known([each.content_hash for each in files[0].points])

    for name, links in (("billing", NEW), ("billing", NEW), ("payments", OLD), ("billing", NEW)):
        await index.relink(MINE, name, lambda path, first, last: f"{links}/-/blob/HEAD/-/{path}#L{first}")  # noqa: B023

    assert await urls(index, "payments") == set()
    page = f"{NEW}/-/blob/HEAD/-/"
    assert await urls(index, "billing") == {f"{page}a.py#L1", f"{page}a.py#L11", f"{page}b.py#L1"}
    assert await urls(index, "other") == {f"{OLD}/-/blob/HEAD/-/a.py#L1"}
    after = await index.known(list(before))
    assert {key: value.tolist() for key, value in after.items()} == {k: v.tolist() for k, v in before.items()}


# Vectors that are added later -------------------------------------------------------------------------------------


def by_words(written: FileWrite) -> FileWrite:
    points = [dataclasses.replace(point, dense=None) for point in written.points]
    return dataclasses.replace(written, points=points)


async def without_vector(index: QdrantIndex) -> set[str]:
    pages = [page async for page in index.points_without_vector(scope().version_id)]
    lacking = {str(point.id) for page in pages for point in page}
    assert await index.count(scope().version_id, without_vector=True) == len(lacking)
    return lacking


@pytest.mark.parametrize("spec", [SPEC, WINDOWED], ids=["vector", "multivector"])
async def test_vectors_that_are_added_later_are_those_of_points_that_were_stored_with_them(
    index: QdrantIndex, spec: EmbeddingSpec
) -> None:
    await index.ensure(spec)
    written = file("a.py", *(f"text {number}" for number in range(300)), spec=spec)
    await index.replace_files(scope(), [by_words(written)])
    assert await without_vector(index) == ids_of(written)

    vectors = {point_id("id-of-payments", "a.py", written.blob_sha, each.chunk_index): each for each in written.points}
    await index.add_vectors(scope(), {number: each.dense for number, each in vectors.items() if each.dense is not None})

    assert await without_vector(index) == set()
    known = await index.known([each.content_hash for each in written.points])
    assert all(np.allclose(known[each.content_hash], each.dense, atol=1e-6) for each in written.points)
    pages = [page async for page in index.chunks("id-of-payments", ["a.py"])]
    assert {point.payload["page_content"] for page in pages for point in page} == {each.text for each in written.points}
    assert (await paths_found(index, "text 77"))[0] == "a.py", "its words are still found"


async def test_a_run_that_lost_its_lease_adds_no_vector_to_points_of_a_later_run(index: QdrantIndex) -> None:
    await index.ensure(SPEC)
    mine, theirs = file("mine.py", "mine"), file("theirs.py", "theirs")
    await index.replace_files(scope(epoch=4), [by_words(mine)])
    await index.replace_files(scope(epoch=5), [by_words(theirs)])
    await index.add_vectors(scope(epoch=4), {number: dense("late") for number in ids_of(mine, theirs)})
    assert await without_vector(index) == ids_of(theirs)


async def test_a_vector_for_a_point_that_was_deleted_meanwhile_is_an_error_and_makes_no_point(
    index: QdrantIndex,
) -> None:
    await index.ensure(SPEC)
    written = file("a.py", "one", "two")
    await index.replace_files(scope(), [by_words(written)])
    gone, left = sorted(ids_of(written))
    await index.remove_points(scope(), [gone])
    with pytest.raises(PointMissing):
        await index.add_vectors(scope(), {gone: dense("one"), left: dense("two")})
    assert await stored_ids(index) == {left}


async def test_a_point_that_is_stored_again_by_its_words_has_no_former_vector(index: QdrantIndex) -> None:
    await index.ensure(SPEC)
    written = file("a.py", "one", "two")
    await index.replace_files(scope(epoch=1), [written])
    await index.replace_files(scope(epoch=2), [by_words(written)])
    assert await without_vector(index) == ids_of(written)


async def test_versions_that_are_found_by_words_have_no_hits_by_meaning(index: QdrantIndex) -> None:
    await index.ensure(SPEC)
    await index.replace_files(scope("payments"), [file("payments.py", "alpha")])
    await index.replace_files(scope("orders"), [file("orders.py", "alpha")])
    only = {"by_words": ["id-of-payments"]}
    assert set(await paths_found(index, "alpha", **only)) == {"payments.py", "orders.py"}
    query = IndexQuery(sparse=sparse(""), dense=dense("alpha"), by_words=["id-of-payments"])
    assert [hit.path for hit in await index.search(query)] == ["orders.py"]
    assert await index.search(dataclasses.replace(query, versions=["id-of-payments"])) == []
