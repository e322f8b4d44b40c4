"""Search over the live versions of the indexes, also while versions become live."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Protocol, TypeAlias

from reposync.content.languages import canonical_language, known_languages
from reposync.embedding.port import Embedder, EmbeddingSpec, Matrix, SparseVector
from reposync.embedding.sparse import query_vector
from reposync.errors import EmbeddingError, UsageError, VectorIndexError
from reposync.search.past_commits import PastCommits
from reposync.search.pastes import Paste
from reposync.search.query import By, SearchText, read_query
from reposync.search.ranking import Question, ranked, telling_words
from reposync.search.scope import TRIES, IndexParts, Scope, index_missing, nothing_indexed, scope_of, with_inactive
from reposync.search.similar import Excerpt, Place, excerpt_of
from reposync.store.database import Database
from reposync.store.index_queries import live_versions, repository_names, searched_version
from reposync.store.manifest import Manifests
from reposync.supervision import in_thread, together
from reposync.symbol import Symbol
from reposync.vectors.port import WORDS_WEIGHT, Candidate, CollectionMissing, IndexQuery, Phrasing, SearchHit
from reposync.words import nearest

log = logging.getLogger(__name__)

_Vectors: TypeAlias = "list[Matrix | None]"
"""Those of each phrasing; None if the model knows no word of it."""

# The meaning of a single identifier is little more than its words.
_IDENTIFIER_WORDS_WEIGHT = 0.9
# How long an unavailable former model is not asked again, so that not every search waits for it.
ASK_AGAIN_SECONDS = 30.0


class SearchParts(IndexParts, Protocol):
    """What is searched, and the embedders that its vectors were made with."""

    manifests: Manifests

    def embedder(self) -> Embedder:
        """The embedder of the configured model."""

    def embedder_for(self, spec: EmbeddingSpec) -> Embedder | None:
        """The embedder of a version's model; None if its address is unknown."""


class Searching:
    def __init__(self, parts: SearchParts) -> None:
        self._parts = parts
        self._ask_again: dict[EmbeddingSpec, float] = {}
        # Of collections, which do not change what they were made for. Read again after an error.
        self._specs: dict[str, EmbeddingSpec] = {}
        self._commits: PastCommits | None = PastCommits()

    def without_commits(self) -> Searching:
        """The same, but what past commits say of files does not decide: questions that they ask would be answered by
        themselves."""
        other = self.of(self._parts)
        other._commits = None
        return other

    def of(self, parts: SearchParts) -> Searching:
        """The same over a part of the repositories. It shares what is known of models, collections and commits."""
        limited = copy.copy(self)
        limited._parts = parts
        return limited

    async def words(self, asked: SearchText) -> str:
        """What the lines of hits are compared with: the telling words of the query, or the code that hits are like.
        Raises as `search` does."""
        if asked.like is None:
            return " ".join(map(telling_words, asked.phrasings))
        return (await self._excerpt(asked.like, asked.repositories)).text

    async def search(
        self,
        asked: SearchText | str | Sequence[str],
        *,
        repository: str | Sequence[str] | None = None,
        limit: int = 10,
        by: By = By.BOTH,
    ) -> list[SearchHit]:
        """Best first. A text, or those of several phrasings, is read as a query, with its filters. By meaning alone,
        nothing is found in an index that has no dense vectors.

        Raises RepositoryNotFound, RepositoryInactive, FileNotIndexed, UsageError, and what index, embedder and store
        raise."""
        if not isinstance(asked, SearchText):
            asked = read_query(asked, repository=repository)
        excerpt = None
        if asked.like is not None:
            excerpt = await self._excerpt(asked.like, asked.repositories)
            asked = replace(asked, words=excerpt.text)
        known = canonical(asked.language) if asked.language else None
        read_scope = partial(scope_of, self._parts, asked.repositories)
        # At the same time: a search takes 2 ms less.
        embedded_texts = () if by is By.WORDS else asked.phrasings
        scope, embedded = await together(read_scope(), self._embedded(embedded_texts))
        if not scope.collections:
            raise nothing_indexed()
        texts = [""] * len(asked.phrasings) if by is By.MEANING else [*map(telling_words, asked.phrasings)]
        sparse, *others = vectors = await in_thread(lambda: [query_vector(each) for each in texts])
        if excerpt is not None:
            orders: list[dict[str, Any]] = [{"rank": excerpt.others}]
        else:
            pairs = zip(asked.phrasings, vectors, strict=True)
            orders = [self._order(Question(text), vector, scope) for text, vector in pairs]
        query = IndexQuery(
            sparse,
            path_glob=asked.path,
            language=known,
            symbol=asked.symbol,
            kind=asked.kind,
            limit=limit,
            places=() if asked.paste is None else asked.paste.frames,
            others=[Phrasing(each, **order) for each, order in zip(others, orders[1:], strict=True)],
            **orders[0],
        )
        hits, scope = await self._hits(query, embedded_texts, scope, read_scope, embedded)
        by_words = {hit.version for hit in hits if scope.finds_by_words(hit.version)}
        meaning = await self._parts.manifests.meaning_indexed(by_words) if by_words else {}
        return [
            replace(hit, meaning_indexed=meaning.get(hit.version), definitions=_definitions(hit, asked)) for hit in hits
        ]

    async def _hits(
        self,
        query: IndexQuery,
        texts: Sequence[str],
        scope: Scope,
        read_scope: Callable[..., Awaitable[Scope]],
        embedded: Mapping[EmbeddingSpec, _Vectors | EmbeddingError],
    ) -> tuple[list[SearchHit], Scope]:
        """The best of all collections, and the scope in which they were found: it still holds afterwards.
        `embedded`: the vectors of `texts`, or why there are none, by model; without texts, only words are searched."""
        met = _Met()
        for attempt in range(1, TRIES + 1):
            found = []
            if scope.served is not None:
                # A scope of all repositories: no search uses the other collections any more.
                for gone in self._specs.keys() - scope.collections:
                    del self._specs[gone]
            for physical in sorted(scope.collections):
                index = self._parts.index(physical)
                spec = self._specs.get(physical) or await index.spec()
                if spec is not None:
                    self._specs[physical] = spec
                    vectors = embedded[spec] if spec in embedded else await self._dense(texts, spec)
                    if isinstance(vectors, EmbeddingError):
                        raise vectors
                    full = _with_vectors(query, vectors)
                    found.append((index, scope.limited(full, physical, met.unwanted)))
            try:
                answers = await together(*(index.search(each) for index, each in found))
            except VectorIndexError as error:
                self._specs.clear()
                # A collection is dropped after its last version was replaced.
                if attempt == TRIES or not isinstance(error, CollectionMissing):
                    raise
                scope = await read_scope()
                continue
            # The best candidate of each collection has a score of about 1: those of different ones are comparable.
            hits = sorted(chain.from_iterable(answers), key=lambda hit: -hit.score)[: query.limit]
            # The points of a version that was retired meanwhile may have been removed before they were read.
            searched, of_hits = scope, self._database_of(hits, scope)
            scope, outdated, names = await together(
                read_scope(ids=met.unwanted.union(hit.version for hit in hits)),
                Manifests(of_hits).outdated([(hit.version, hit.path) for hit in hits]),
                repository_names(of_hits, {hit.version for hit in hits}),
            )
            if met.may_be_shown(hits, scope) and searched.lasts(scope):
                break
        if not found:
            raise index_missing() if scope.collections else nothing_indexed()
        # Of some repositories, nothing is shown that the database does not know as theirs.
        is_shown = {each: True for each in names if each in scope.versions}
        # The points of a repository that was renamed have its former name until its next run.
        return [
            replace(
                hit, outdated=(hit.version, hit.path) in outdated, repository=names.get(hit.version, hit.repository)
            )
            for hit in hits
            if hit.version not in met.unwanted and is_shown.get(hit.version, scope.served is not None)
        ], scope

    def _database_of(self, hits: Sequence[SearchHit | Candidate], scope: Scope) -> Database:
        """Of all that is visible, only the repositories of the hits: a statement that is limited to 5,000 takes
        PostgreSQL 2 ms more."""
        if scope.others is None:
            return self._parts.database
        return self._parts.database.limited(self._parts.live.repositories_of({hit.version for hit in hits}))

    async def _excerpt(self, place: Place, searched: Sequence[str]) -> Excerpt:
        """`searched`: what is searched; a path without a repository is looked for there first."""
        inactive = with_inactive(self._parts)
        named = [] if place.repository is None else [place.repository]
        files = await live_versions(self._parts.database, named, path=place.path, inactive=inactive)
        mine = [each for each in files if each.repository in searched]
        if place.repository is not None and not files:
            await searched_version(self._parts.database, place.repository, inactive=inactive)
        if len(mine or files) > 1:
            names = ", ".join(f"{each.repository}:{place.path}:{place.line}" for each in (mine or files)[:3])
            raise UsageError(f"Several repositories have a file {place.path!r}.", remedy=f"Name one: {names}.")
        for each in mine or files:
            pages = self._parts.index(each.collection).chunks(each.id, [place.path])
            return excerpt_of([point async for page in pages for point in page], each.id, place)
        return excerpt_of([], "", place)

    def _order(self, question: Question, vector: SparseVector, scope: Scope) -> dict[str, Any]:
        if self._parts.configuration.registry.search.ranking == "plain":
            return {}

        async def rank(found: Sequence[Candidate]) -> Sequence[Candidate]:
            if self._commits is None:
                return ranked(question, found)
            like = await self._commits.like(self._database_of(found, scope), found, vector.indices)
            return ranked(question, found, like)

        return {
            "rank": rank,
            "words_weight": _IDENTIFIER_WORDS_WEIGHT if question.is_identifier else WORDS_WEIGHT,
        }

    async def _embedded(self, texts: Sequence[str]) -> dict[EmbeddingSpec, _Vectors | EmbeddingError]:
        """The texts' vectors by the model of all collections so far, or why there are none. Empty: there were several,
        or none was searched yet."""
        models = set(self._specs.values())
        if len(models) != 1 or not texts:
            return {}
        (spec,) = models
        try:
            return {spec: await self._dense(texts, spec)}
        except EmbeddingError as error:
            return {spec: error.without_traceback()}

    async def _dense(self, texts: Sequence[str], spec: EmbeddingSpec) -> _Vectors:
        """The texts' vectors by the collection's model, in one call. None for all without a model, and if it is not
        configured any more and cannot be used: only words are searched until the configured model is live."""
        nothing: _Vectors = [None] * len(texts)
        if not texts or not spec.dimension:
            return nothing
        if not await self._is_former(spec):
            return _rows(await self._parts.embedder().embed_queries(texts))
        if time.monotonic() >= self._ask_again.get(spec, 0.0):
            embedder = self._parts.embedder_for(spec)
            try:
                if embedder is not None and await embedder.spec(spec) == spec:
                    return _rows(await embedder.embed_queries(texts))
                reason = "its server is not configured any more"
            except EmbeddingError as error:
                reason = str(error)
            log.warning("searching words only: the former model %s cannot be used: %s", spec.model, reason)
            self._ask_again[spec] = time.monotonic() + ASK_AGAIN_SECONDS
        return nothing

    async def _is_former(self, spec: EmbeddingSpec) -> bool:
        try:
            return await self._parts.embedder().spec(spec) != spec
        except EmbeddingError:
            named = self._parts.configuration.registry.embedding.model
            if named in (None, spec.model):
                raise
            return True


def _rows(questions: Sequence[Matrix]) -> _Vectors:
    return [each if len(each) else None for each in questions]


def _with_vectors(query: IndexQuery, vectors: _Vectors) -> IndexQuery:
    """Without any, only words are searched."""
    if not vectors:
        return query
    dense, *others = vectors
    pairs = zip(query.others, others, strict=True)
    return replace(query, dense=dense, others=[replace(phrasing, dense=each) for phrasing, each in pairs])


class _Met:
    """Versions whose points were found. `unwanted`: those that must not be found, although the filter allowed them."""

    def __init__(self) -> None:
        self._unknown: set[str] = set()
        self.unwanted: set[str] = set()

    def may_be_shown(self, hits: Sequence[SearchHit], scope: Scope) -> bool:
        """`scope`: read since, with the ids of the hits and of `unwanted`."""
        if scope.served is None:
            # Of nobody's repository, or new: the filter left out the versions that were known.
            foreign = {hit.version for hit in hits} - scope.versions
            self.unwanted = (self.unwanted | foreign) - scope.versions
            return not foreign
        known = scope.served.findable
        unwanted = {each for each, is_findable in known.items() if not is_findable}
        # Either it is being removed, and is not found again, or its points are of a different installation.
        unknown = {hit.version for hit in hits} - known.keys()
        may = unwanted == self.unwanted and unknown <= self._unknown
        self.unwanted, self._unknown = unwanted, self._unknown | unknown
        return may


def _definitions(hit: SearchHit, asked: SearchText) -> list[Symbol]:
    if asked.paste is not None:
        return _around(hit, asked.paste) if "frame" in hit.parts else []
    if asked.symbol is None and asked.kind is None:
        return []
    return [
        each
        for each in hit.symbols
        if asked.symbol in (None, each.name)
        and asked.kind in (None, each.kind)
        and hit.start_line <= each.start_line <= hit.end_line
    ]


def _around(hit: SearchHit, paste: Paste) -> list[Symbol]:
    """The smallest definition around the first place of the text that is in the hit, if it begins there, too."""
    lines = [each.line for each in paste.frames if each.line and each.is_in(hit.path, hit.start_line, hit.end_line)]
    around = [each for each in hit.symbols if lines and hit.start_line <= each.start_line <= lines[0] <= each.end_line]
    return sorted(around, key=lambda each: each.end_line - each.start_line)[:1]


def canonical(language: str) -> str:
    """Raises UsageError, which names the nearest language."""
    known = canonical_language(language)
    if known is None:
        near = nearest(language, sorted(known_languages()))
        remedy = f"Did you mean {near!r}?" if near else None
        raise UsageError(f"No language is known as {language!r}.", remedy=remedy)
    return known
