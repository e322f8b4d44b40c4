"""Terms that every match has: no file with a match is ever left out because of them."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from reposync.content.chunking import chunk_text
from reposync.embedding.sparse import document_vector, terms_vector
from reposync.errors import UsageError
from reposync.search.pattern import MAX_PATTERN_CHARS, Pattern
from reposync.search.required_words import required_words

WORDS = [
    *("parse", "Config", "HTTP", "the", "with", "utf8", "_", "__", "x", "9", "sessions", "Ab", "aB", "q" * 60),
    *("é", "naïve", "\u0301", "\u0338", "²", "™", "ﬁ", "\u212a", "ſ", "ⓐ"),
    *("中", "会话", "管理", "か", "\u3099", "한", "ᅡ"),
]
SEPARATORS = [" ", "(", ")", ".", "-", "\t", "\n", "\n", "—", "“", "\u00a0", "=", "\\", "\r\n"]
TEXTS = st.lists(st.sampled_from(WORDS + SEPARATORS), min_size=1, max_size=40).map("".join)


@st.composite
def patterns_of(draw: st.DrawFn, text: str) -> str:
    """A part of the text as a regular expression, with pieces of it made general."""
    start = draw(st.integers(0, len(text)))
    part = text[start : draw(st.integers(start, min(len(text), start + 30)))].replace("\r", "")
    pieces = []
    for character in part:
        general = [re.escape(character)] * 8
        escaped = re.escape(character)
        general += [".", rf"(?:{escaped}|zz)", rf"(?:x|{escaped})", rf"{escaped}+"]
        general += [r"\s+", r"\s*"] if character in " \t" else [r"\w"] if character.isascii() else [r"[^a]"]
        general += [r"[-.(]"] if character in "-.(" else []
        pieces.append(draw(st.sampled_from(general)))
    whole = "".join(pieces)
    forms = [whole, whole, rf"\b{whole}\b", rf"\b{whole}", rf"{whole}\b", rf"^{whole}", rf"{whole}$"]
    forms += [rf"(?:{whole}|zz)", rf"\b(zz|{whole})\b", f"({whole})?.", f"(?i){whole}", rf"(?P<a>{whole}){{1,2}}"]
    return draw(st.sampled_from(forms))


def lines_of(pattern: Pattern, text: str) -> list[int]:
    return [each.line for each in pattern.lines(text, 1_000, time.monotonic() + 60)]


def shares(clause: frozenset[str], texts: list[str]) -> bool:
    wanted = set(terms_vector(clause).indices.tolist())
    return any(wanted & set(document_vector(text).indices.tolist()) for text in texts)


@given(st.data())
def test_every_text_that_a_pattern_matches_has_its_terms(data: st.DataObject):
    text = data.draw(TEXTS)
    source = data.draw(patterns_of(text))
    ignore_case = data.draw(st.booleans())
    if ignore_case:
        text = data.draw(st.sampled_from([text, text.upper(), text.lower(), text.swapcase()]))
    assume(source and len(source) <= MAX_PATTERN_CHARS)
    try:
        pattern = Pattern(source, ignore_case=ignore_case)
    except UsageError:
        return  # such as a repeated repetition
    if lines_of(pattern, text):
        for clause in pattern.required.clauses:
            assert shares(clause, [text]), (source, clause)


@given(TEXTS, st.data())
def test_every_text_that_a_fixed_text_is_in_has_its_terms(text: str, data: st.DataObject):
    start = data.draw(st.integers(0, len(text) - 1))
    part = text[start : data.draw(st.integers(start + 1, len(text)))]
    pattern = Pattern(part, fixed=True, ignore_case=data.draw(st.booleans()))

    for clause in pattern.required.clauses:
        assert shares(clause, [text]), (part, clause)


@given(
    st.lists(st.sampled_from([*WORDS, " ", ";", "(", "\n"]), min_size=100, max_size=600).map("".join),
    st.sampled_from(["python", "html", "markdown", None]),
    st.data(),
)
@example("a" * 63 + ";" + "b" * 100 + ";parse_config(" * 60, "html", None)
def test_the_terms_are_in_the_chunks_of_a_text_wherever_it_is_cut(
    text: str, language: str | None, data: st.DataObject | None
):
    chunks = [each.text for each in chunk_text(text, language, 400, 200)]
    words = [each for each in re.findall(r"\w+", text, re.ASCII) if len(each) <= 128] or ["zz"]
    word = words[0] if data is None else data.draw(st.sampled_from(words))
    pattern = Pattern(rf"\b{word}\b")

    if lines_of(pattern, text):
        for clause in pattern.required.clauses:
            assert shares(clause, chunks), clause


@pytest.mark.parametrize(
    ("pattern", "terms"),
    [
        (r"\bparse_config\b", [{"parseconfig"}]),
        (r"def\s+parse_config\s*\(", [{"parseconfig"}]),
        (r"^import os$", [{"import"}, {"os"}]),
        (r"\b(get|set_value)\b", [{"get", "setvalue"}]),
        (r"(?i)class Session:", [{"session"}]),
        ("会话管理", [{"会话"}, {"话管"}]),
        # A part of a longer word may be of any word.
        ("parse_config", []),
        (r"parse_config\(", []),
        (r" foo|bar ", []),
        (r"( foo )?", []),
        (r" (foo )*", []),
        (r"\W foo[^x]", []),
        # Words that the index leaves out, or does not cut.
        (" the ", []),
        (" " + "x" * 129 + " ", []),
        # What is not understood.
        (r"\Q foo \E", []),
        (r"\pL foo bar ", []),
        ("(" * 30 + " foo " + ")" * 30, []),
    ],
)
def test_words_are_required_only_if_their_borders_are_known(pattern: str, terms: list[set[str]]):
    found = required_words(pattern, fixed=False, ignore_case=False).clauses

    assert [set(each) for each in found] == terms


def test_a_hostile_pattern_is_read_in_no_time():
    for pattern in ("(" * 1_000, "[" * 1_000, "a|" * 500, "(a|" * 300 + ")" * 300, "\\" * 1_000):
        assert not required_words(pattern, fixed=False, ignore_case=False).clauses
