"""What the other rooms hand to the index and get from it (`index.QdrantIndex`). Imports nothing heavy."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reposync.errors import VectorIndexError
from reposync.symbol import Symbol

if TYPE_CHECKING:
    from reposync.config.sections import QdrantConfig
    from reposync.embedding.port import EmbeddingSpec, Matrix, SparseVector
    from reposync.vectors.named_places import NamedPlace

DENSE, SPARSE = "dense", "sparse"
WORDS_WEIGHT = 0.5
"""The weight of words in the fusion; chosen with the ranking, see `search/ranking.py`."""
LATEST_EPOCH = 2**53
"""No run gets this far. Not every JSON reader distinguishes larger numbers; one in a point is not reposync's."""
POINT_NAMESPACE = uuid.UUID("6f1d2f0e-5a0c-5c0b-9d5e-0d6f7265706f")

PointId = str | int
"""Ours are UUIDs as text. A point that another program wrote may have a number."""


class Payload:
    """Keys of the payload that requests name."""

    TEXT = "page_content"
    VERSION_ID = "metadata.repository_id"  # the key is older than versions
    REPOSITORY = "metadata.repository"
    PATH = "metadata.path"
    PATH_TOKENS = "metadata.path_tokens"
    LANGUAGE = "metadata.language"
    CONTENT_HASH = "metadata.content_hash"
    BLOB_SHA = "metadata.blob_sha"
    EPOCH = "metadata.epoch"
    COMMIT = "metadata.commit"
    URL = "metadata.url"
    CHUNK_INDEX = "metadata.chunk_index"
    START_LINE, END_LINE = "metadata.start_line", "metadata.end_line"
    SYMBOLS = "metadata.symbols"
    SYMBOL_NAME, SYMBOL_KIND = "metadata.symbols[].name", "metadata.symbols[].kind"
    CALLS = "metadata.calls"


@dataclass(frozen=True, slots=True)
class ResolvedCollection:
    """The collection that a name leads to, and what it was made for."""

    physical: str
    spec: EmbeddingSpec | None
    schema: object
    identity: str


def _default_qdrant() -> QdrantConfig:
    from reposync.config.sections import QdrantConfig  # content workers need no configuration: pydantic takes 0.1 s

    return QdrantConfig()


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """One collection at one place: the server of `qdrant`, or the embedded engine in `state_dir` if it has no `url`."""

    collection: str
    state_dir: Path
    qdrant: QdrantConfig = field(default_factory=_default_qdrant)

    @property
    def is_embedded(self) -> bool:
        return self.qdrant.url is None


class CollectionMissing(VectorIndexError):
    """404: the collection was never made, was dropped, or was damaged and set aside. A further attempt makes it."""

    code = "COLLECTION_MISSING"
    status = 404
    retryable = True


class PointMissing(VectorIndexError):
    """404: a point that a change names does not exist."""


def point_id(version_id: str, path: str, blob_sha: str, chunk_index: int) -> str:
    """UUIDv5 of the four: two contents never share an id, and a repeat changes nothing."""
    return str(uuid.uuid5(POINT_NAMESPACE, f"{version_id}\0{path}\0{blob_sha}\0{chunk_index}"))


def no_check() -> None:
    """For writes without a lease."""


@dataclass(frozen=True, slots=True)
class StoredPoint:
    """A point as it is in the collection. Its payload is not trusted: any program may have written it. `dense`: its
    dense vectors, if they were requested."""

    id: PointId
    payload: Mapping[str, Any]
    dense: Matrix | None = None


@dataclass(frozen=True, slots=True)
class PointWrite:
    """One chunk with its vectors. `dense` is None for sparse search alone. `start_index`: see `content.model.Chunk`.
    `calls`: names that are called in it."""

    chunk_index: int
    text: str
    start_line: int
    end_line: int
    content_hash: str
    url: str | None
    dense: Matrix | None
    sparse: SparseVector
    symbols: Sequence[Symbol] = ()
    start_index: int | None = None
    calls: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class FileWrite:
    """All points of one file at one blob. `replaces`: older points of this path may exist and are deleted after."""

    path: str
    language: str | None
    blob_sha: str
    points: Sequence[PointWrite]
    replaces: bool


@dataclass(frozen=True, slots=True)
class WriteScope:
    """The run that writes, and the version of the index that it writes to. `epoch` is the fence: deletes never touch
    points of a later one. `check` is called right before each request that writes, also before a retry, and raises if
    the run may not write any more: encoding, connecting and retries take time, in which a process may have been frozen
    past its lease."""

    version_id: str
    repository: str
    commit: str
    epoch: int
    check: Callable[[], None] = no_check


@dataclass(slots=True)
class Candidate:
    """A chunk that may become a hit, with what its rank depends on. `names`: of the definitions in it. `parts`: what
    the score is made of. `phrasings`: as `Hit` has them."""

    id: PointId
    version: str
    repository: str
    path: str
    start_line: int
    end_line: int
    language: str | None
    names: Sequence[str]
    score: float
    parts: Mapping[str, float]
    phrasings: Sequence[int] = ()

    def scored(self, score: float, parts: Mapping[str, float], phrasings: Sequence[int] = ()) -> Candidate:
        """A tenth of the time of `dataclasses.replace`, for the candidates of each search."""
        place = (self.id, self.version, self.repository, self.path, self.start_line, self.end_line, self.language)
        return Candidate(*place, self.names, score, parts, phrasings)


Rank = Callable[[Sequence[Candidate]], Awaitable[Sequence[Candidate]]]
"""Candidates in the order of the fusion to those that may be shown, best first, their scores and parts completed."""


@dataclass(frozen=True, slots=True)
class Phrasing:
    """One wording of what is searched for. `dense` is None for sparse search alone. `words_weight`: of the sparse
    vector's score in the fusion, 0 to 1; the rest is the dense vector's."""

    sparse: SparseVector
    dense: Matrix | None = None
    words_weight: float = WORDS_WEIGHT
    rank: Rank | None = None


@dataclass(frozen=True, slots=True)
class IndexQuery:
    """`sparse`, `dense`, `words_weight` and `rank` are those of the first phrasing, `others` its further ones: their
    hits are fused. `path_glob` has gitignore semantics. `symbol`, `kind`: only chunks with a definition of that name,
    of that kind; one definition must have both. `calls`: only chunks that call this name. A filter that is None is not
    applied. `versions`: only points of these index versions, if any is given; `hidden`: none of these; `by_words`:
    those of these are found by the sparse vector alone. `places`: chunks there come first."""

    sparse: SparseVector
    dense: Matrix | None = None
    versions: Sequence[str] = ()
    hidden: Sequence[str] = ()
    by_words: Sequence[str] = ()
    path_glob: str | None = None
    language: str | None = None
    symbol: str | None = None
    kind: str | None = None
    calls: str | None = None
    limit: int = 10
    words_weight: float = WORDS_WEIGHT
    rank: Rank | None = None
    others: Sequence[Phrasing] = ()
    places: Sequence[NamedPlace] = ()

    @property
    def phrasings(self) -> list[Phrasing]:
        return [Phrasing(self.sparse, self.dense, self.words_weight, self.rank), *self.others]


@dataclass(frozen=True, slots=True)
class Hit:
    """Lines of a file, including `start_line` and `end_line`. `score`: higher is better; it ranks the hits of one
    search, and cannot be compared between searches. `url`: shows these lines to a person. `outdated`: the file has
    changed since, and its newer state could not be read. `masked`: how many secrets are masked in the text.
    `meaning_indexed`: the first sync of the repository is still running: it is searched by words only, and this
    share (0 to 1) of its meaning is indexed; otherwise null. `parts`: the sum of `words`, `meaning`, `definition`,
    `path`, `commits` and `file`, times `prior`, is the score; of a search by several phrasings, those of the best one,
    and in `others` what the others add; of a place in a pasted text, `frame` is all of it. `phrasings`: the numbers
    (from 1) of the phrasings that find it, the best one first; empty if the search has one. `symbols`: what these lines
    define. `definitions`: those of them that `symbol` and `kind` ask for, or that a place in a pasted text is in, and
    that begin in these lines."""

    repository: str
    path: str
    start_line: int
    end_line: int
    language: str | None
    score: float
    text: str
    url: str | None
    outdated: bool = False
    masked: int = 0
    meaning_indexed: float | None = None
    # Not Sequence and Mapping, which pydantic serialises in Python: 0.5 ms a search.
    parts: dict[str, float] = field(default_factory=dict)
    phrasings: list[int] = field(default_factory=list)
    symbols: list[Symbol] = field(default_factory=list)
    definitions: list[Symbol] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit(Hit):
    """With what clients do not see. `commit`: of the run that stored the point. `version`: id of the point's index
    version. It has no symbols if a program before 0.2 stored the point."""

    commit: str
    version: str = ""
