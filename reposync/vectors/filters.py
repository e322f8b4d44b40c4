"""The filters of our requests. Every one that deletes names a repository and the epoch that it may not pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reposync.vectors.port import LATEST_EPOCH, PointId, SearchQuery, WriteScope

Filter = dict[str, Any]

REPOSITORY_ID = "metadata.repository_id"
REPOSITORY = "metadata.repository"
PATH = "metadata.path"
LANGUAGE = "metadata.language"
CONTENT_HASH = "metadata.content_hash"
BLOB_SHA = "metadata.blob_sha"
EPOCH = "metadata.epoch"
URL = "metadata.url"
START_LINE, END_LINE = "metadata.start_line", "metadata.end_line"


def equals(key: str, value: str | int) -> Filter:
    return {"key": key, "match": {"value": value}}


def one_of(key: str, values: Sequence[str]) -> Filter:
    return {"key": key, "match": {"any": list(values)}}


def _mine(scope: WriteScope) -> list[Filter]:
    """What a writer may touch: its repository's points, but none that a later one wrote."""
    return [equals(REPOSITORY_ID, scope.repository_id), {"key": EPOCH, "range": {"lte": scope.epoch}}]


def stale_points(scope: WriteScope, path: str, kept: Sequence[str]) -> Filter:
    """All points of the path but those with the ids `kept`."""
    stale: Filter = {"must": [*_mine(scope), equals(PATH, path)]}
    return stale | {"must_not": [{"has_id": list(kept)}]} if kept else stale


def points_of_paths(scope: WriteScope, paths: Sequence[str]) -> Filter:
    return {"must": [*_mine(scope), one_of(PATH, paths)]}


def points_by_id(scope: WriteScope, ids: Sequence[PointId]) -> Filter:
    """Not of a later epoch, in place of one up to mine: a foreign point may have none at all, or no number."""
    mine = [equals(REPOSITORY_ID, scope.repository_id), {"has_id": list(ids)}]
    return {"must": mine, "must_not": [_later_than(scope.epoch)]}


def _later_than(epoch: int) -> Filter:
    return {"key": EPOCH, "range": {"gt": epoch, "lt": LATEST_EPOCH}}


def points_of_later_epochs(repository_id: str, epoch: int) -> Filter:
    return {"must": [equals(REPOSITORY_ID, repository_id), _later_than(epoch)]}


def points_without(vector: str, repository_id: str) -> Filter:
    return {**points_of_repository(repository_id), "must_not": [{"has_vector": vector}]}


def points_of_repository(repository_id: str, *, epoch: int | None = None) -> Filter:
    only = [] if epoch is None else [equals(EPOCH, epoch)]
    return {"must": [equals(REPOSITORY_ID, repository_id), *only]}


def points_of_other_name(repository_id: str, name: str) -> Filter:
    return {**points_of_repository(repository_id), "must_not": [equals(REPOSITORY, name)]}


def both(first: Filter | None, second: Filter) -> Filter:
    return {"must": [second]} if first is None else {"must": [first, second]}


def searched(query: SearchQuery) -> Filter | None:
    """What Qdrant itself can filter by; globs are not among it."""
    wanted = [(REPOSITORY_ID, query.version), (LANGUAGE, query.language)]
    must = [equals(key, value) for key, value in wanted if value is not None]
    hidden = [one_of(REPOSITORY_ID, sorted(query.hidden))] if query.hidden else []
    found: Filter = ({"must": must} if must else {}) | ({"must_not": hidden} if hidden else {})
    return found or None
