"""Questions of two public benchmarks of code search, read from a folder, and their metrics.

The folder holds `repositories.json`, `annotations/NAME.json` for each of these repositories, and `octocode-lines.csv`,
in the formats of their authors (github.com/MinishLab/semble, github.com/Muvon/octocode).

**semble: files.** A question has relevant and secondary files, which count the same. A path of an answer fits a file if
either is a suffix of the other, in whole names. NDCG@10: gain 1 / log2(1 + rank) at the rank of each answer's first
occurrence, divided by the gain of as many answers at the first ranks. Two readings of "rank":

- `hits`: among the first ten hits, as semble reports its own figures and those of BM25 and CodeRankEmbed; a few answers
  are lines of a file, which the hit must overlap. A second hit in the same file takes up a place.
- `files`: among the first ten files, each counted once, as it reports those of grepai and ColGREP.

**octocode: lines.** An answer is a span of lines of relevance 2 or 1; a hit has the highest relevance of the answers
that it overlaps. hit@10: is any of ten hits relevant; MRR@10: 1 / rank of the first that is (octocode looks at twenty
hits); NDCG@10: sum of relevance / log2(1 + rank) over ten hits, divided by that of the answers in their best order. As
there, several hits may overlap the same answer and each count, so that a question can exceed 1.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

T = TypeVar("T")

TOP = 10
LINES_FILE = "octocode-lines.csv"
_SPAN = re.compile(r"(?P<path>.+):(?P<first>\d+)-(?P<last>\d+):(?P<relevance>\d+)")
_Text = Annotated[str, Field(min_length=1)]


class InvalidData(Exception):
    """The message names the file and the place in it."""


class Found(Protocol):
    """Of a search hit, what is compared with the answers."""

    @property
    def path(self) -> str: ...
    @property
    def start_line(self) -> int: ...
    @property
    def end_line(self) -> int: ...


class Repository(BaseModel):
    """`benchmark_root`: the folder that is indexed; None: all of it."""

    model_config = ConfigDict(frozen=True)

    name: _Text
    language: _Text
    url: Annotated[str, Field(pattern=r"^https://[^/]+/.+/.+$")]
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    benchmark_root: str | None = None

    @property
    def folder(self) -> str:
        """`OWNER/NAME`: the last two parts of the URL."""
        return "/".join(self.url.removesuffix(".git").split("/")[-2:])


OCTOCODE = Repository(
    name="octocode",
    language="rust",
    url="https://github.com/Muvon/octocode.git",
    revision="b1771ba48214ce7404ad7158e277eb60680912b4",
)
"""The commit that its lines were taken from, as its README says."""


class Answer(BaseModel):
    """A file, or lines of it."""

    model_config = ConfigDict(frozen=True)

    path: _Text
    start_line: int | None = None
    end_line: int | None = None

    def is_file(self, path: str) -> bool:
        return path == self.path or path.endswith(f"/{self.path}") or self.path.endswith(f"/{path}")

    def is_in(self, hit: Found) -> bool:
        if self.start_line is None or self.end_line is None:
            return self.is_file(hit.path)
        return self.is_file(hit.path) and hit.start_line <= self.end_line and hit.end_line >= self.start_line


def _as_mapping(answer: Any) -> Any:
    return {"path": answer} if isinstance(answer, str) else answer


_Answers = tuple[Annotated[Answer, BeforeValidator(_as_mapping)], ...]


class FileQuestion(BaseModel):
    """Answered by files of one repository."""

    model_config = ConfigDict(frozen=True)

    query: _Text
    category: _Text
    relevant: Annotated[_Answers, Field(min_length=1)]
    secondary: _Answers = ()

    @property
    def answers(self) -> _Answers:
        return self.relevant + self.secondary


@dataclass(frozen=True)
class LineAnswer:
    path: str
    first: int
    last: int
    relevance: int

    def overlaps(self, hit: Found) -> bool:
        return hit.path == self.path and hit.start_line <= self.last and hit.end_line >= self.first


@dataclass(frozen=True)
class LineQuestion:
    """Answered by lines of files of octocode's repository."""

    query: str
    answers: tuple[LineAnswer, ...]


# Reading -----------------------------------------------------------------------------------------------------------


def read_repositories(folder: Path) -> tuple[Repository, ...]:
    """Raises InvalidData."""
    return _read_json(folder / "repositories.json", TypeAdapter(tuple[Repository, ...]))


def read_file_questions(folder: Path, repository: Repository) -> tuple[FileQuestion, ...]:
    """Raises InvalidData."""
    return _read_json(folder / "annotations" / f"{repository.name}.json", TypeAdapter(tuple[FileQuestion, ...]))


def read_line_questions(folder: Path) -> tuple[LineQuestion, ...]:
    """Raises InvalidData."""
    file = folder / LINES_FILE
    rows = csv.reader(_read(file).splitlines())
    if next(rows, [])[:2] != ["query", "result1"]:
        raise InvalidData(f"{file}, line 1: the header must be query,result1,result2,result3.")
    questions = []
    for query, *answers in filter(None, rows):
        spans = [_SPAN.fullmatch(answer) for answer in answers if answer]
        if not query or not spans or None in spans:
            raise InvalidData(f"{file}, line {rows.line_num}: not a query and spans such as src/main.rs:41-61:2.")
        found = (LineAnswer(each["path"], *map(int, each.groups()[1:])) for each in spans if each is not None)
        questions.append(LineQuestion(query, tuple(found)))
    if not questions:
        raise InvalidData(f"{file} has no questions.")
    return tuple(questions)


def _read_json(file: Path, adapter: TypeAdapter[T]) -> T:
    try:
        return adapter.validate_python(json.loads(_read(file)))
    except json.JSONDecodeError as error:
        raise InvalidData(f"{file}, line {error.lineno}: not JSON: {error.msg}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f", item {part + 1}" if isinstance(part, int) else f", {part}" for part in first["loc"])
        raise InvalidData(f"{file}{place}: {first['msg']}.") from None


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidData(f"{file} cannot be read: {reason}.") from None


# Metrics -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileScores:
    """NDCG@10 of one question, with the two readings of a rank."""

    files: float
    hits: float


@dataclass(frozen=True)
class LineScores:
    """hit@10, MRR@10 and NDCG@10 of one question."""

    hit: float
    mrr: float
    ndcg: float


def score_files(question: FileQuestion, hits: Sequence[Found], deeper: Sequence[Found]) -> FileScores:
    """`hits`: those of a search for ten; `deeper`: of a search for more, enough for ten files."""
    files = list(dict.fromkeys(hit.path for hit in deeper))[:TOP]
    # Lines of one file in several answers are one file.
    paths = {answer.path: answer for answer in question.answers}.values()
    return FileScores(
        files=_ndcg([_rank([each.is_file(path) for path in files]) for each in paths]),
        hits=_ndcg([_rank([each.is_in(hit) for hit in hits[:TOP]]) for each in question.answers]),
    )


def score_lines(question: LineQuestion, hits: Sequence[Found]) -> LineScores:
    gains = [
        max((answer.relevance for answer in question.answers if answer.overlaps(hit)), default=0) for hit in hits[:TOP]
    ]
    rank = _rank([gain > 0 for gain in gains])
    best = sorted((answer.relevance for answer in question.answers), reverse=True)
    return LineScores(float(rank is not None), 1 / rank if rank else 0.0, _dcg(gains) / (_dcg(best[:TOP]) or 1.0))


def _rank(fits: Sequence[bool]) -> int | None:
    """Of the first that fits, from 1."""
    return fits.index(True) + 1 if True in fits else None


def _ndcg(ranks: Sequence[int | None]) -> float:
    """Of one answer at each rank, None if it was not found. Two at the same rank count once, as in semble."""
    gains = [float(rank in ranks) for rank in range(1, TOP + 1)]
    return _dcg(gains) / _dcg([1.0] * min(TOP, len(ranks)))


def _dcg(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))
