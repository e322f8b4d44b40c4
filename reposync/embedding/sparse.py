"""BM25 as sparse vectors, with words cut the way programmers join them.

`parseHTTPResponse` is found by its own name, by `parse_http_response`, and by "http responses": the terms of an
identifier are the whole of it and its parts, stemmed. Splitting at `\\w+` alone costs 0.1 MRR on code.

A document's vector has the BM25 term weights, a query's has 1 for each term; Qdrant adds the inverse document frequency
(`Modifier.IDF`), so that no weight changes when the collection grows.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from itertools import accumulate, chain, compress, pairwise
from operator import not_
from typing import Final, TypeVar

import mmh3
from py_rust_stemmers import SnowballStemmer  # type: ignore[import-untyped]

from reposync.embedding.port import SparseVector

T = TypeVar("T")

K: Final = 1.2
B: Final = 0.3
AVERAGE_TERMS: Final = 400
"""BM25's saturation, its length normalisation, and the document length that counts as usual, in terms. Chunks are cut
to one size: the usual B of 0.75 prefers the short ends of files (`docs/decisions/0015-ranking.md`)."""
PATH_WEIGHT: Final = 4
"""How often a word of the path counts."""
NAME_WEIGHT: Final = 4
"""How often the name of a definition counts besides its occurrences in the text. With sparse vectors alone, MRR@10 of
sentences about code rises from 0.415 to 0.468, of names from 0.734 to 0.917; with 8 to 0.478 and 0.940."""

_STOP_WORDS: Final = (
    "a an and are as at be but by for from has have if in into is it its no not of on or such that the their then there"
    " these they this to was were which will with"
)
STOP_WORDS: Final = frozenset(_STOP_WORDS.split())

# A longer run is data (base64, a minified line), not a name: one term, unsplit.
_LONGEST_NAME: Final = 128
# Words up to this length are remembered with their ids. Repositories are hostile: both limits together hold the
# memory of the cache under 64 MB whatever it is fed; real code takes 13 MB at most, and 1 word in 28 is not there.
# Four times as many words save 2 to 7% of the time, and take 19 MB more in each worker, or 190 MB of hostile words.
_LONGEST_REMEMBERED: Final = 64
_REMEMBERED_WORDS: Final = 1 << 15

_stem = SnowballStemmer("english").stem_word
_parts_of_name = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ASCII_SEPARATORS: Final = "".join(chr(c) if chr(c).isalnum() or chr(c) == "_" else " " for c in range(128))

# Scripts written without spaces between words: Hangul, Kana and Han.
_CJK: Final = (
    "\u1100-\u11ff\u3131-\u318e\ua960-\ua97c\uac00-\ud7a3\ud7b0-\ud7fb"
    "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\U0001aff0-\U0001b16f"
    "\u3005-\u3007\u3021-\u3029\u3038-\u303c\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_cjk_run = re.compile(f"[{_CJK}]+")
# Characters of these scripts that no neighbour changes in normalisation, unless a mark follows them.
_stable_cjk_run = re.compile("[\u3041-\u3096\u30a1-\u30fa\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3]+")


def query_terms(text: str) -> frozenset[str]:
    """The distinct terms that a search for `text` looks for: a line with one of them is worth showing.

    ASCII and other alphabets: lower-case stems of each word, and for a compound identifier the whole of it (without
    underscores) besides its parts. Runs of Hangul, Kana and Han: every two neighbouring characters; a run of one as
    itself.
    """
    return frozenset(chain.from_iterable(map(_terms_of, words(text))))


def terms_in_lines(lines: Sequence[str], wanted: frozenset[str]) -> list[frozenset[str]]:
    """The terms of `wanted` that each line has."""
    found: list[frozenset[str]] = [frozenset()] * len(lines)
    text = "\n".join(lines)
    if not text.isascii():
        found = [found[0] if line.isascii() else wanted & query_terms(line) for line in lines]
        text = "\n".join(line if line.isascii() else "" for line in lines)
    # Each word with a space on both sides, at its offset in the text.
    spaced = f" {text.translate(_ASCII_SEPARATORS)} "
    ends = list(accumulate(len(line) + 1 for line in text.split("\n")))
    distinct = list(set(spaced.split()))
    # Most words have none: that is found out without a line of Python for each.
    has_none = map(wanted.isdisjoint, map(_terms_of, distinct))
    for word in compress(distinct, map(not_, has_none)):
        terms = wanted.intersection(_terms_of(word))
        at = -1
        while (at := spaced.find(f" {word} ", at + 1)) >= 0:
            found[bisect_right(ends, at)] |= terms
    return found


def document_vector(text: str, *, path: str | None = None, names: Iterable[str] = ()) -> SparseVector:
    """BM25 weights of a document's terms. Those of `path` count PATH_WEIGHT times more, since people search by file
    names, and those of each of `names`, which the document defines, NAME_WEIGHT times."""
    import numpy as np  # a sync without changes computes no vectors, and saves the import (0.1 s)

    counted = words(text)
    if path is not None:
        counted += words(path) * PATH_WEIGHT
    for name in dict.fromkeys(names):
        counted += words(name) * NAME_WEIGHT
    frequencies = Counter(chain.from_iterable(map(_ids_of, counted)))
    indices = np.fromiter(frequencies.keys(), np.uint32, len(frequencies))
    values = np.fromiter(frequencies.values(), np.float32, len(frequencies))
    norm = K * (1 - B + B * frequencies.total() / AVERAGE_TERMS)
    return SparseVector(indices, values * np.float32(K + 1) / (values + np.float32(norm)))


def query_vector(text: str) -> SparseVector:
    """Weight 1 for each distinct term. Empty if `text` has only stop words and punctuation."""
    return terms_vector(chain.from_iterable(map(_terms_of, words(text))))


def terms_vector(wanted: Iterable[str]) -> SparseVector:
    """Weight 1 for each distinct term: a query for what has one of them."""
    import numpy as np

    ids = dict.fromkeys(mmh3.hash(term, signed=False) for term in wanted)
    return SparseVector(np.fromiter(ids, np.uint32, len(ids)), np.ones(len(ids), np.float32))


def certain_terms(run: str, *, bounded: bool, ignore_case: bool) -> list[frozenset[str]]:
    """What every text has that contains `run`, characters other than ASCII separators: of each set, one term at least.

    `bounded`: in the text there is an ASCII separator on both sides, or its end. Without it only runs of CJK have
    certain terms: a word of which `run` is a part may have any stem, and is one term if it is longer than 128.
    `ignore_case`: the text may have other capitals, and so other parts.
    """
    if not run.isascii():
        # A mark after the last character may change it.
        inner = [match[0][:-1] for match in _stable_cjk_run.finditer(run)]
        return [frozenset({pair}) for part in inner for pair in map("".join, pairwise(part))]
    if not bounded or len(run) > _LONGEST_NAME:
        return []
    if not ignore_case:
        # The whole word, which its parts go with.
        return [frozenset({term}) for term in _terms_of_word(run)[:1]]
    parts = _parts(run.lower())
    whole = "".join(parts)
    if not whole or whole in STOP_WORDS:
        return []
    return [frozenset({whole} if len(parts) > 1 else {whole, _stem(whole)})]


def words(text: str) -> list[str]:
    """Words before they are cut: runs of letters, digits and underscores, CJK runs apart from their neighbours."""
    if text.isascii():
        # over 75 M characters translate and split take 0.8 s with the counting, re.findall 1.35 s
        return text.translate(_ASCII_SEPARATORS).split()
    return _unicode_word().findall(unicodedata.normalize("NFKC", text))


@cache
def _unicode_word() -> re.Pattern[str]:
    """`\\w` leaves out the combining marks, without which words of Indic scripts fall into pieces."""
    marks = "".join(chr(c) for c in range(0x300, 0x10000) if unicodedata.category(chr(c)) in ("Mn", "Mc"))
    return re.compile(f"[{_CJK}]+|(?:(?![{_CJK}])[\\w{marks}])+")


class Remembered(dict[str, tuple[T, ...]]):
    """What `make` returned for each word met so far. A dict whose misses are Python and whose hits are not: a fifth
    less time in all than with lru_cache behind a function that looks at the length."""

    def __init__(self, make: Callable[[str], tuple[T, ...]]) -> None:
        self._make = make

    def __missing__(self, word: str) -> tuple[T, ...]:
        made = self._make(word)
        if len(word) <= _LONGEST_REMEMBERED:
            if len(self) >= _REMEMBERED_WORDS:
                self.clear()  # the common words are back within a few documents
            self[word] = made
        return made


def _terms_of_word(word: str) -> tuple[str, ...]:
    if _cjk_run.match(word):
        return tuple(map("".join, pairwise(word))) or (word,)
    if len(word) > _LONGEST_NAME:
        return (word.casefold(),)
    parts = [part.casefold() for part in _parts(word)]
    if len(parts) == 1:
        return () if parts[0] in STOP_WORDS else (_stem(parts[0]),)
    # A part of one character (the 8 of utf8, the x of 0xFF) says nothing by itself.
    stems = [_stem(part) for part in parts if len(part) > 1 and part not in STOP_WORDS]
    return ("".join(parts), *stems) if parts else ()


@lru_cache(_REMEMBERED_WORDS)
def name_parts(name: str) -> tuple[str, ...]:
    """Stems of the parts of an identifier, without parts of one character: `HTTPServer_v2` -> http, server."""
    if len(name) > _LONGEST_REMEMBERED:
        return ()
    return tuple(_stem(part.casefold()) for part in _parts(name) if len(part) > 1)


def table_words(word: str) -> tuple[str, ...]:
    """Words of the static model in one of `words`: stems of its parts, without digits, stop words and parts of one
    character."""
    if len(word) > _LONGEST_NAME:
        return ()
    parts = [part.casefold() for part in _parts(word) if len(part) > 1 and not part[0].isdigit()]
    return tuple(_stem(part) for part in parts if part not in STOP_WORDS)


def _ids(word: str) -> tuple[int, ...]:
    return tuple(mmh3.hash(term, signed=False) for term in _terms_of_word(word))


_terms_of = Remembered(_terms_of_word).__getitem__
_ids_of = Remembered(_ids).__getitem__


def _parts(word: str) -> list[str]:
    """`HTTPServer_v2` -> HTTP, Server, v, 2; the same in every script that knows capitals."""
    if word.isascii():
        return _parts_of_name.findall(word)
    shape = "".join(map(_shape, word))
    return [word[m.start() : m.end()] for m in _parts_of_name.finditer(shape)]


def _shape(character: str) -> str:
    if character == "_":
        return "_"
    if character.isdecimal():
        return "0"
    return "A" if character.isupper() else "a"
