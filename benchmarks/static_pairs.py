"""Training text of the table of word vectors: windows of words, and pairs of a question and code that answers it.

A question is the first sentence of a comment; its answer is the code after the comment, without comments. Words are
numbers in the order of their first occurrence.
"""

from __future__ import annotations

import random
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from reposync.embedding.sparse import table_words, words

_LONGEST_FILE: Final = 120_000
_LONGEST_LINE: Final = 2_000
_PACKAGE_CHARS: Final = 1_000_000
_PACKAGE_PAIRS: Final = 1_000
_FILE_PAIRS: Final = 60
"""A large package must not outweigh the others."""

_REMEMBERED_WORDS: Final = 2_000_000

_SLASHES = r"^[ \t]*/\*[*!]?(?P<block>(?:[^*]|\*(?!/))*)\*/[ \t]*\n|(?P<lines>(?:^[ \t]*//[/!]*[^\n]*\n)+)"
_QUOTED = r'"""(?P<block>.*?)"""'
_HASHES = r"(?P<lines>(?:^[ \t]*#'?[ \t][^\n]*\n)+)"
_COMMENTS: Final = {
    "c": _SLASHES,
    "hash": _HASHES,
    "python": r':[ \t]*\n[ \t]*[rRuU]?"""(?P<block>.*?)"""',
    "elixir": r'@(?:module)?doc[ \t]+(?:~[sS])?"""(?P<block>.*?)"""|' + _HASHES,
    "dashes": r"^[ \t]*(?:\{-|--\[\[)(?P<block>.*?)(?:-\}|\]\])[ \t]*\n|(?P<lines>(?:^[ \t]*--[^\n]*\n)+)",
    "percent": r"(?P<lines>(?:^[ \t]*%+[ \t][^\n]*\n)+)",
    "ocaml": r"\(\*\*?(?P<block>(?:[^*]|\*(?!\)))*)\*\)[ \t]*\n",
    "lisp": r'(?P<head>^\(def[^\n"]*(?:\n[^\n"]*)?)\n?[ \t]*"(?P<block>(?:[^"\\]|\\.){20,900})"'
    r"|(?P<lines>(?:^[ \t]*;+[^\n]*\n)+)",
    "julia": r'^"""(?P<block>.*?)"""[ \t]*\n|' + _HASHES,
    "bang": r"(?P<lines>(?:^[ \t]*![^\n]*\n)+)",
}
_SYNTAX: Final = {
    suffix: kind
    for kind, suffixes in {
        "c": "js mjs cjs jsx ts tsx mts vue svelte go rs java kt kts scala groovy c h cc cpp cxx hpp hh cs php swift"
        " d zig m mm dart sol glsl cu v",
        "hash": "rb pl pm r R sh bash zsh tcl nim cr awk coffee",
        "python": "py pyx",
        "elixir": "ex exs",
        "dashes": "hs lua sql elm",
        "percent": "erl hrl",
        "ocaml": "ml mli sml",
        "lisp": "lisp cl scm rkt el clj ss",
        "julia": "jl",
        "bang": "f90 f95 f",
    }.items()
    for suffix in suffixes.split()
}
SUFFIXES: Final = frozenset(_SYNTAX)
_PATTERNS = {kind: re.compile(pattern, re.S | re.M) for kind, pattern in _COMMENTS.items()}
_ANY_COMMENT = re.compile(
    r'/\*.*?\*/|""".*?"""|\'\'\'.*?\'\'\'|\{-.*?-\}|\(\*.*?\*\)|^[ \t]*(?://|#(?!\w)|--|;;|\*|%)[^\n]*|[ ;{(]//[^\n]*',
    re.S | re.M,
)
_MARKS = re.compile(r"^[ \t]*(?:\*|//+!?|#+'?|--+|;+|%+|!+)+[ \t]?[|^]?", re.M)
_MARKUP = re.compile(r"\{@\w+\s+([^{}]*)\}|</?\w[^<>\n]{0,80}>|[`*]|:[a-z]+:(?=`)|\[(\w[\w.:]*)\]")
_END_OF_SUMMARY = re.compile(r"\n\s*\n|\n\s*[@\\]\w|:param|\n\s*(?:Args|Arguments|Parameters|Returns)\s*[:\n]|\n\s*#\s")
_NO_DESCRIPTION = re.compile(
    r"copyright|licen[sc]e|eslint|pylint|noqa|todo|fixme|xxx|type:|https?:|spdx|@ts-|nolint|coding:|generated", re.I
)
_QUESTION_WORDS = range(4, 46)


class _Cut(dict[str, tuple[int, ...]]):
    """The numbers of the stems in each word."""

    def __init__(self, numbers: dict[str, int]) -> None:
        self._numbers = numbers

    def __missing__(self, word: str) -> tuple[int, ...]:
        cut = tuple(self._numbers.setdefault(stem, len(self._numbers)) for stem in table_words(word))
        if len(self) < _REMEMBERED_WORDS:
            self[word] = cut
        return cut


@dataclass
class Corpus:
    """`windows`, `questions` and `answers`: numbers of words, one array after another; `*_ends`: where each ends.
    `packages`: in how many packages each word is."""

    numbers: dict[str, int] = field(default_factory=dict)
    packages: Counter[int] = field(default_factory=Counter)
    windows: array[int] = field(default_factory=lambda: array("i"))
    window_ends: array[int] = field(default_factory=lambda: array("q"))
    questions: array[int] = field(default_factory=lambda: array("i"))
    question_ends: array[int] = field(default_factory=lambda: array("q"))
    answers: array[int] = field(default_factory=lambda: array("i"))
    answer_ends: array[int] = field(default_factory=lambda: array("q"))

    def __post_init__(self) -> None:
        self._cut = _Cut(self.numbers)

    def add_package(self, files: Iterable[tuple[str, str]], seed: str) -> int:
        """Paths and texts. Returns how many pairs they gave."""
        mixed = random.Random(seed)
        chars = pairs = 0
        seen: set[int] = set()
        for path, text in files:
            if chars > _PACKAGE_CHARS:
                break
            text = text.replace("\r\n", "\n")[:_LONGEST_FILE]
            if max(map(len, text[:20_000].split("\n"))) > _LONGEST_LINE:
                continue  # minified, or data
            chars += len(text)
            for window in _windows(text):
                numbers = self._numbers(window)
                if len(numbers) > 8:
                    self.windows.extend(numbers)
                    self.window_ends.append(len(self.windows))
                    seen.update(numbers)
            if pairs < _PACKAGE_PAIRS:
                pairs += self._add_pairs(path, text, mixed)
        self.packages.update(seen)
        return pairs

    def _add_pairs(self, path: str, text: str, mixed: random.Random) -> int:
        added = 0
        for sentence, code in pairs_of(path, text, mixed):
            question, answer = self._numbers(sentence), self._numbers(code)
            if len(question) >= 3 and len(answer) >= 10:
                self.questions.extend(question)
                self.question_ends.append(len(self.questions))
                self.answers.extend(answer)
                self.answer_ends.append(len(self.answers))
                added += 1
                if added >= _FILE_PAIRS:
                    break
        return added

    def _numbers(self, text: str) -> tuple[int, ...]:
        return tuple(chain.from_iterable(map(self._cut.__getitem__, words(text))))


def pairs_of(path: str, text: str, mixed: random.Random) -> Iterator[tuple[str, str]]:
    """Sentences and the code that they are about."""
    syntax = _SYNTAX[path.rpartition(".")[2]]
    for comment in _PATTERNS[syntax].finditer(text):
        groups = comment.groupdict()
        sentence = _sentence(groups.get("block") or groups.get("lines") or "")
        if sentence is None:
            continue
        code = text[comment.end() : comment.end() + mixed.choice((700, 1200, 2500))]
        head = groups.get("head") or ""
        if syntax == "python":
            at = text.rfind("def ", max(0, comment.start() - 600), comment.start())
            if at < 0 or "class " in text[at : comment.start()]:
                continue
            head = text[at : comment.start()]
        code = f"{head} {_ANY_COMMENT.sub(' ', code)[:2200]}"
        if len(code.strip()) >= 80:
            first, _, rest = sentence.partition(" ")
            # `NewReader returns ...`: a question does not know the name.
            yield (rest if first.isidentifier() and first in code[:200] else sentence), code


def _sentence(comment: str) -> str | None:
    text = _MARKUP.sub(lambda found: found[1] or found[2] or "", _MARKS.sub("", comment).strip())
    sentence = " ".join(re.split(r"\.\s", _END_OF_SUMMARY.split(text)[0], maxsplit=1)[0].split())
    if len(sentence.split()) not in _QUESTION_WORDS or _NO_DESCRIPTION.search(sentence):
        return None
    if sum(c.isalpha() or c == " " for c in sentence) < 0.8 * len(sentence):
        return None  # code that is commented out
    return sentence


def _windows(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        end = text.rfind("\n", at + 500, at + 1200)
        end = end if end > 0 else at + 1200
        yield text[at:end]
        at = end
