"""A question in words becomes a query; answers of several collections become one list."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Sequence

from reposync.content.languages import canonical_language, known_languages
from reposync.embedding.port import Embedder, EmbeddingSpec
from reposync.embedding.sparse import query_vector
from reposync.errors import UsageError
from reposync.threads import in_thread
from reposync.vectors.port import Index, SearchHit, SearchQuery

MAX_QUERY_CHARS = 2_000


def checked_text(text: str) -> str:
    """`text` without the white space around it. Raises UsageError where nothing is left, or too much."""
    text = text.strip()
    if not text:
        raise UsageError("The query is empty.", remedy="Say in words what the code does, or name an identifier.")
    if len(text) > MAX_QUERY_CHARS:
        raise UsageError(f"The query has {len(text):,} characters; at most {MAX_QUERY_CHARS:,} are searched for.")
    return text


def checked_language(name: str) -> str:
    """The canonical name of what a person calls a language. Raises UsageError, naming the nearest."""
    canonical = canonical_language(name)
    if canonical is None:
        near = difflib.get_close_matches(name.lower(), sorted(known_languages()), n=1)
        raise UsageError(f"No language is known as {name!r}.", remedy=f"Did you mean {near[0]!r}?" if near else None)
    return canonical


async def make_query(
    embedder: Embedder | None, spec: EmbeddingSpec, text: str, path_glob: str | None, language: str | None, limit: int
) -> SearchQuery:
    """`text` is a checked one; `spec` is that of `embedder`. Without an embedder it is searched by words alone."""
    return SearchQuery(
        sparse=await in_thread(lambda: query_vector(text)),
        dense=await embedder.embed_query(text) if embedder is not None and spec.dimension else None,
        path_glob=path_glob,
        language=checked_language(language) if language else None,
        limit=limit,
    )


async def search_collections(queries: Sequence[tuple[Index, SearchQuery]], limit: int) -> list[SearchHit]:
    """The best of all. A score is a sum of reciprocal ranks within one collection, so that the first of each collection
    stand on a level, as they do where lists are fused."""
    answers = await asyncio.gather(*(index.search(query) for index, query in queries))
    hits = [hit for answer in answers for hit in answer]
    return sorted(hits, key=lambda hit: -hit.score)[:limit]
