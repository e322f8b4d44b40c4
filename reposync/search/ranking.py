"""The order of a search's candidates, by what their paths and definitions say about the question. Pure functions.

Fusion of words and meaning finds the right files; it does not know that a file is named after what is asked for, that a
chunk defines it, or that a test only uses it. Weights were chosen on the development half of public benchmarks:
`docs/benchmarks.md` has the figures with each signal alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache, partial
from types import MappingProxyType
from typing import Final

from reposync.content.languages import language_of
from reposync.content.symbols import has_definitions
from reposync.embedding.sparse import STOP_WORDS, name_parts, words
from reposync.vectors.port import Candidate

_DEFINITION: Final = 0.35
_FILE_NAME, _FOLDERS = 0.4, 0.3
"""Weights beside the fused score, whose best is 1: how much of the file's name the question says, and how much of the
question the folders say."""
_FILE: Final = 0.1
"""What a second chunk of the same file adds to the best one, of its fused score: what is asked for is seldom in one
place alone."""
_FURTHER_PROSE: Final = 0.5
"""The factor of further chunks of a file without definitions: ten results from one changelog are one answer."""
_COMMITS: Final = 0.4
"""What similar commits of its file add to the best chunk at most; what they add to other files is in proportion."""
_NOTHING: Final[Mapping[tuple[str, str], float]] = MappingProxyType({})
_ENOUGH_SAID: Final = 0.2
"""The share of a question from which a file's name counts in full; one that says less of it counts less. One word of a
long sentence names no file."""

# How well a definition's name is matched.
_WHOLE, _COMPOUND, _WORD, _PARTS, _RELATED = 1.0, 0.9, 0.5, 0.7, 0.3

_PREFIX_MATCH: Final = 0.8
_SHORTEST_PREFIX: Final = 4
"""`router` and `routing` have different stems, of which one begins with the other."""

_SHORTEST_WORD: Final = 4
_LONGEST_COMPOUND: Final = 4  # words
_MAX_WORDS: Final = 64
"""The words of a question that are ranked by; it is a sentence, and what follows is a quotation."""

_ASKING: Final = "all can do does get how i use used using we what when where which who why work works you"
_QUESTION_WORDS: Final = STOP_WORDS | frozenset(_ASKING.split())
_MARKS: Final = ".,;:?!()'\""
_IDENTIFIER: Final = re.compile(r"[^\W\d]\w*(?:(?:::|\.|->|#)[^\W\d]\w*)*")
_LOOKS_LIKE_CODE: Final = re.compile(r"[a-z][A-Z]|_|::|\w\.\w|->|[A-Z]{2}|\d")
_LAST_NAME: Final = re.compile(r"::|\.|->|#")

_CHANGELOG: Final = re.compile(
    r"(?:^|/)(?:change-?logs?|changes|news|history|release[-_]?notes?|releases|what-?s-?new)(?:\.[^/]*)?$"
    r"|(?:^|/)(?:change-?logs?|newsfragments|release[-_]?notes?|releases|what-?s-?new|\.changes?ets?)(?:\.d)?/",
    re.IGNORECASE,
)

# Files that use what others define, or tell of it: pattern of the path, factor, and words of a question that asks for
# them. A changelog is prose, too.
_PRIORS: Final = (
    (
        re.compile(
            r"(?:^|/)(?:tests?|__tests__|specs?|testing|test_?data|fixtures|mocks?|__mocks__|e2e)/"
            r"|(?:^|/)(?:test_[^/]*|conftest\.py|[^/]*(?:[._-](?:tests?|spec)\.[^/.]+|Tests?\.(?:java|kt|cs|swift|scala|php)))$"
        ),
        0.7,
        re.compile(r"\b(?:tests?|testing|specs?|fixtures?|mocks?)\b", re.IGNORECASE),
    ),
    (
        re.compile(
            r"(?:^|/)(?:examples?|samples?|demos?|bench(?:es|marks?)?|docs?(?:_src)?|tutorials?)/|_bench(?:mark)?\."
        ),
        0.8,
        re.compile(r"\b(?:examples?|samples?|demos?|bench\w*|doc\w*|tutorials?)\b", re.IGNORECASE),
    ),
    (
        re.compile(r"(?:^|/)_?(?:compat|legacy|deprecated|vendor|third_party|shims?|polyfills?|v1)(?:/|\.|$)"),
        0.7,
        re.compile(r"\b(?:compat\w*|legacy|deprecated|vendor\w*|shims?|polyfills?|v1)\b", re.IGNORECASE),
    ),
    (
        _CHANGELOG,
        0.75,
        re.compile(r"\b(?:change-?logs?|changes|news|histor\w*|releas\w*|versions?|upgrad\w*)\b", re.IGNORECASE),
    ),
    (
        re.compile(
            r"\.(?:mdx?|markdown|rst|txt|adoc|textile|[1-9]|pod|rdoc|html?)$"
            r"|(?:^|/)(?:readme|changelog|news|copying|licen[cs]e|authors|todo|contributing)[^/]*$",
            re.IGNORECASE,
        ),
        0.8,
        re.compile(
            r"\b(?:doc\w*|readme|guides?|tutorials?|manuals?|explain\w*|licen[cs]e\w*|contribut\w*|pages?|website"
            r"|typos?|wording|change-?logs?|releas\w*)\b",
            re.IGNORECASE,
        ),
    ),
)

_NO_DEFINITION: Final = 0.7
"""The factor of the fused score for a chunk that defines nothing in a language with definitions: imports, names, calls.
What the path adds is not changed: macros, tables and set-up code are answers, if the file is the right one."""


class Question:
    """What a query names. `is_identifier`: it is a single word of code, for which words count more than meaning."""

    def __init__(self, text: str) -> None:
        self.is_identifier = len(text.split()) == 1 and _IDENTIFIER.fullmatch(text.strip()) is not None
        spoken = words(text)[:_MAX_WORDS]
        self.parts = frozenset(
            part for word in spoken if word.casefold() not in _QUESTION_WORDS for part in name_parts(word)
        )
        wholes = [_whole(word) for word in spoken]
        compounds = {
            "".join(wholes[start:end])
            for start in range(len(wholes))
            for end in range(start + 2, min(len(wholes), start + _LONGEST_COMPOUND) + 1)
        }
        content = {_whole(word) for word in spoken if word.casefold() not in _QUESTION_WORDS}
        self.wholes = frozenset(content | compounds)
        named = [text.strip()] if self.is_identifier else filter(_LOOKS_LIKE_CODE.search, _IDENTIFIER.findall(text))
        # Asked for every part of 80 paths and 700 definitions, many of which repeat themselves.
        by_start: dict[str, list[str]] = {}
        for part in self.parts:
            by_start.setdefault(part[:_SHORTEST_PREFIX], []).append(part)
        self.starts = by_start.keys()
        self.near = cache(partial(_near, by_start))
        self.says = cache(partial(_says, by_start))
        # What the path adds to a score, and its prior. Large files have many chunks among the candidates.
        self.of_path = cache(lambda path: (path_match(self, path), path_prior(self, path)))
        self.of_folders = cache(lambda folders: _coverage(self, _terms(folders)))
        # The factor of each of `_PRIORS`.
        self.priors = [1.0 if unless.search(text) else factor for _, factor, unless in _PRIORS]
        self.identifiers = frozenset(_whole(_LAST_NAME.split(each)[-1]) for each in named)


def telling_words(text: str) -> str:
    """The text without words that ask and say nothing: `where are sessions removed` -> `sessions removed`. All of it,
    if nothing else is left."""
    return " ".join(each for each in text.split() if each.strip(_MARKS).casefold() not in _QUESTION_WORDS) or text


def ranked(
    question: Question, found: Sequence[Candidate], like: Mapping[tuple[str, str], float] = _NOTHING
) -> list[Candidate]:
    """All of `found`, best first, their scores and parts completed. `like`: how much the commits of a file are like the
    question, by version and path."""
    share = _COMMITS / max(_COMMITS, max(like.values(), default=0.0))
    # Stable: equal scores keep the order of the fusion.
    order = sorted((_scored(question, each) for each in found), key=_best_first)
    best: dict[tuple[str, str], int] = {}
    again: dict[int, float] = {}
    for at, each in enumerate(order):
        file = each.version, each.path
        if (first := best.setdefault(file, at)) == at:
            # Of its best place alone: with all, one file is the first results.
            if file in like:
                order[at] = _with_part(each, "commits", share * like[file])
            continue
        again[first] = max(again.get(first, 0.0), each.parts["words"] + each.parts["meaning"])
        if not has_definitions(each.language):
            order[at] = _with_factor(each, _FURTHER_PROSE)
    for at, fused in again.items():
        order[at] = _with_part(order[at], "file", _FILE * fused)
    return sorted(order, key=_best_first)


def _best_first(chunk: Candidate) -> float:
    return -chunk.score


def _with_part(chunk: Candidate, name: str, part: float) -> Candidate:
    return chunk.scored(chunk.score + part * chunk.parts["prior"], {**chunk.parts, name: part})


def _with_factor(chunk: Candidate, factor: float) -> Candidate:
    return chunk.scored(chunk.score * factor, {**chunk.parts, "prior": chunk.parts["prior"] * factor})


def _scored(question: Question, chunk: Candidate) -> Candidate:
    definition = _DEFINITION * definition_match(question, chunk.names)
    path, prior = question.of_path(chunk.path)
    fused, parts = chunk.score, chunk.parts
    if not chunk.names and has_definitions(chunk.language):
        fused, parts = fused * _NO_DEFINITION, {name: part * _NO_DEFINITION for name, part in parts.items()}
    parts = {**parts, "definition": definition, "path": path, "prior": prior}
    return chunk.scored((fused + definition + path) * prior, parts)


def definition_match(question: Question, names: Iterable[str]) -> float:
    """How well the question names one of the definitions, 0 to 1."""
    best = 0.0
    for whole, parts, starts in map(_name, names):
        if whole in question.identifiers:
            return _WHOLE
        if whole in question.wholes:
            match = _COMPOUND if len(parts) > 1 else _WORD * (len(whole) >= _SHORTEST_WORD)
        # The first test is true of few names, and takes a tenth of the others.
        elif starts <= question.starts and parts and len(whole) >= _SHORTEST_WORD and all(map(question.says, parts)):
            weight = _PARTS if len(parts) > 1 else _RELATED
            match = weight * sum(map(question.says, parts)) / len(parts)
        else:
            continue
        best = max(best, match)
    return best


def path_match(question: Question, path: str) -> float:
    """The weight of the words that path and question share."""
    if not question.parts:
        return 0.0
    folders, _, file = path.rpartition("/")
    stem = file.lstrip(".").split(".")[0]
    in_stem = _terms(stem)
    near = list(filter(None, map(question.near, in_stem)))
    match = sum(max(each.values()) for each in near) / len(in_stem) if near else 0.0
    match = 1.0 if _whole(stem) in question.wholes else match
    said = set().union(*near)
    enough = min(1.0, max(1, len(said)) / len(question.parts) / _ENOUGH_SAID)
    return _FILE_NAME * match * enough + _FOLDERS * question.of_folders(folders)


def is_changelog(path: str) -> bool:
    """Whether the file tells what changed; code that is named so does not."""
    return _CHANGELOG.search(path) is not None and not has_definitions(language_of(path.encode()))


def path_prior(question: Question, path: str) -> float:
    """A factor of at most 1 for paths whose files seldom answer, unless the question asks for them."""
    return math.prod(question.priors[number] for number in _seldom_answers(path))


@lru_cache(1 << 13)
def _seldom_answers(path: str) -> list[int]:
    """The entries of `_PRIORS` that the path matches."""
    return [number for number, (pattern, *_) in enumerate(_PRIORS) if pattern.search(path)]


def _coverage(question: Question, parts: Iterable[str]) -> float:
    """How much of the question `parts` match, 0 to 1."""
    best: dict[str, float] = {}
    for part in parts:
        for asked, match in question.near(part).items():
            best[asked] = max(best.get(asked, 0.0), match)
    return sum(best.values()) / len(question.parts)


def _near(asked: Mapping[str, Sequence[str]], part: str) -> dict[str, float]:
    """The words of `asked`, by their first characters, that match `part` of a name, 0 to 1 each."""
    return {each: match for each in asked.get(part[:_SHORTEST_PREFIX], ()) if (match := _match(part, each))}


def _says(asked: Mapping[str, Sequence[str]], part: str) -> float:
    return max(_near(asked, part).values(), default=0.0)


def _match(one: str, other: str) -> float:
    """How much two words that begin alike match: 1 if they are the same, 0 if neither begins with the other."""
    if one == other:
        return 1.0
    return _PREFIX_MATCH * (one.startswith(other) or other.startswith(one))


@lru_cache(1 << 13)
def _terms(text: str) -> frozenset[str]:
    return frozenset(part for word in words(text) for part in name_parts(word))


@lru_cache(1 << 14)
def _name(name: str) -> tuple[str, tuple[str, ...], frozenset[str]]:
    """As one word; its parts; the first characters of each, by which a question finds its own."""
    parts = name_parts(name)
    return _whole(name), parts, frozenset(each[:_SHORTEST_PREFIX] for each in parts)


def _whole(name: str) -> str:
    return name.replace("_", "").casefold()
