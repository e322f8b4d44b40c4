"""A search by a glob among many paths, on a server in strict mode: few requests, none of them without a bound."""

import functools
from collections.abc import Set
from typing import Any

import numpy as np
import pytest

from reposync.embedding.port import SparseVector
from reposync.vectors.hybrid_search import Search
from reposync.vectors.path_tokens import path_tokens
from reposync.vectors.port import IndexQuery
from reposync.vectors.raw_requests import Limits

MOST = 10_000
# By words, by meaning, the texts.
SEARCHED = ["/points/query", "/points/query", "/points", "/points"]
FILES = 12_000
PATHS = [f"src/module{number % 100}/file{number}.py" for number in range(FILES)]
RARE = ["docs/guide.md", "src/Dockerfile", "src/module7/deep/test_rare.py"]


@functools.cache
def _tokens(path: str) -> Set[str]:
    return frozenset(path_tokens(path))


class StrictServer:
    """Points in the order of their rank, one a path. Refuses what a server in strict mode refuses."""

    def __init__(self, paths: list[str], limits: Limits | None = None) -> None:
        self.limits = limits or {}
        self._points = [(each, _tokens(each)) for each in paths]
        self.requests: list[str] = []

    async def request(self, what: str, method: str, path: str, body: Any) -> Any:
        self.requests.append(path)
        assert body.get("limit", 0) <= self.limits.get("max_query_limit", MOST) and not body.get("exact")
        if path == "/points":
            return [_point(each) for each in body["ids"]]
        found = [each for each, tokens in self._points if self._fits(body.get("filter"), each, tokens)][: body["limit"]]
        if path == "/facet":
            return {"hits": [{"value": each, "count": 1} for each in found]}
        return {"points": [_point(each) for each in found]}

    def _fits(self, condition: Any, path: str, tokens: Set[str]) -> bool:
        if condition is None:
            return True
        if "is_empty" in condition:
            return not tokens
        if "match" in condition:
            wanted = condition["match"].get("any") or [condition["match"]["value"]]
            assert len(wanted) <= self.limits.get("condition_max_size", MOST)
            return bool(tokens & set(wanted)) if condition["key"] == "metadata.path_tokens" else path in set(wanted)
        must, should = condition.get("must", []), condition.get("should", [])
        return all(self._fits(each, path, tokens) for each in must) and (
            not should or any(self._fits(each, path, tokens) for each in should)
        )


def _point(path: str) -> dict[str, Any]:
    metadata = dict.fromkeys(("repository_id", "repository", "start_line", "end_line", "language", "url", "commit"), "")
    return {"id": path, "score": 1.0, "payload": {"page_content": "", "metadata": metadata | {"path": path}}}


async def found(server: StrictServer, glob: str | None, limit: int = 10) -> list[str]:
    words = SparseVector(np.array([1], dtype=np.uint32), np.array([1.0], dtype=np.float32))
    dense = np.ones((1, 4), dtype=np.float32)
    query = IndexQuery(words, dense, path_glob=glob, limit=limit)
    search = Search(server.request, query, {}, server.limits)
    return [hit.path for hit in await search.hits()]


@pytest.mark.parametrize(
    ("glob", "path"),
    [
        ("docs/", "docs/guide.md"),
        ("*.md", "docs/guide.md"),
        ("Dockerfile", "src/Dockerfile"),
        ("src/module7/deep/**", "src/module7/deep/test_rare.py"),
        ("src/module7/**/test_*.py", "src/module7/deep/test_rare.py"),
    ],
)
async def test_folders_names_and_extensions_take_few_requests_among_any_number_of_paths(glob: str, path: str) -> None:
    server = StrictServer([*PATHS, *RARE])
    assert await found(server, glob) == [path]
    assert len(server.requests) <= 6 and "/facet" not in server.requests


async def test_a_rare_file_that_tokens_cannot_narrow_is_found_among_ten_thousand_paths() -> None:
    server = StrictServer([*PATHS[: MOST - 10], *RARE])
    assert await found(server, "Docker*") == ["src/Dockerfile"]
    assert server.requests == ["/points/query"] * 6 + ["/facet", *SEARCHED]


async def test_among_more_paths_the_best_candidates_that_match_are_returned() -> None:
    server = StrictServer([*PATHS[:1000], "src/Dockerfile", *PATHS[1000:], "docs/Dockerfile"])
    assert await found(server, "Docker*") == ["src/Dockerfile"]
    assert server.requests == ["/points/query"] * 6 + ["/facet", "/points", "/points"]


async def test_stricter_limits_of_a_server_are_kept() -> None:
    limits = {"max_query_limit": 50, "condition_max_size": 5}
    server = StrictServer([*PATHS[:30], *RARE, *[f"{number}/Dockerfile2" for number in range(6)]], limits)
    assert len(await found(server, "*.py", limit=100)) == 31
    assert await found(server, "Docker*e") == ["src/Dockerfile"]
    assert len(await found(server, "Docker*")) == 7
    assert await found(StrictServer(PATHS, limits), "file999?.py") == []


@pytest.mark.parametrize("limit", [1, 100, 10**9])
@pytest.mark.parametrize("glob", [None, "*.py", "file*9.py", "nowhere/*"])
async def test_no_request_is_unbounded_however_large_the_limit_is(glob: str | None, limit: int) -> None:
    assert len(await found(StrictServer(PATHS), glob, limit)) <= min(limit, MOST)
