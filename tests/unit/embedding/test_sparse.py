from __future__ import annotations

import sys
from collections import Counter

import mmh3
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.embedding import sparse
from reposync.embedding.port import SparseVector
from reposync.embedding.sparse import (
    AVERAGE_TERMS,
    PATH_WEIGHT,
    B,
    K,
    document_vector,
    query_terms,
    query_vector,
    terms_in_lines,
    words,
)

WORDS = st.text(alphabet="abzAZ019_ .\n日本かな한é́Жd", max_size=60)


def terms(text: str) -> list[str]:
    """With repeats, in the order of their words."""
    return [term for word in words(text) for term in sparse._terms_of(word)]


@pytest.mark.parametrize(
    "spelling", ["parseHTTPResponse", "parse_http_response", "ParseHttpResponse", "PARSE_HTTP_RESPONSE"]
)
def test_an_identifier_is_found_in_every_convention_and_by_its_words(spelling: str) -> None:
    assert terms(spelling) == ["parsehttpresponse", "pars", "http", "respons"]
    assert query_terms("parsing of http responses") == {"pars", "http", "respons"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("東京タワー", ["東京", "京タ", "タワ", "ワー"]),
        ("本", ["本"]),
        ("한국어 검색", ["한국", "국어", "검색"]),
        ("データbase64", ["デー", "ータ", "base64", "base", "64"]),
        ("ｶﾀｶﾅ", ["カタ", "タカ", "カナ"]),
        ("𠮷野家", ["𠮷野", "野家"]),
        ("Поиск данных", ["поиск", "данных"]),
        ("ПолучитьДанные", ["получитьданные", "получить", "данные"]),
        ("Ελληνικά", ["ελληνικά"]),
        ("naïveté", ["naïveté"]),
        ("de\u0301ja\u0300", ["déjà"]),
        ("हिन्दी", ["हिन्दी"]),
        ("ｆｕｌｌ", ["full"]),
        ("connection connecting", ["connect", "connect"]),
        ("aB" * 70, ["ab" * 70]),  # data, and no name with parts
    ],
)
def test_every_script_has_words_or_pairs_of_characters(text: str, expected: list[str]) -> None:
    assert terms(text) == expected


@pytest.mark.parametrize("text", ["", "the of and", "___ -- ...", "\n\t ", "\ud800"])
def test_a_text_without_words_has_no_terms(text: str) -> None:
    assert terms(text) == []
    assert document_vector(text).indices.size == query_vector(text).indices.size == 0


@given(WORDS, st.none() | WORDS)
def test_weights_are_bm25_of_the_terms(text: str, path: str | None) -> None:
    vector = document_vector(text, path=path)

    found = terms(text) + (terms(path) * PATH_WEIGHT if path is not None else [])
    frequencies = Counter(mmh3.hash(term, signed=False) for term in found)
    norm = K * (1 - B + B * len(found) / AVERAGE_TERMS)
    expected = {index: count * (K + 1) / (count + norm) for index, count in frequencies.items()}
    assert vector.indices.dtype == np.uint32
    assert vector.values.dtype == np.float32
    assert dict(zip(vector.indices.tolist(), vector.values.tolist(), strict=True)) == pytest.approx(expected, rel=1e-5)


def test_a_file_is_found_by_its_name_before_one_that_has_the_word_more_often() -> None:
    named = document_vector("def remove(): ...", path="src/sessions.py")
    telling = document_vector("remove the session of a session", path="src/log.py")
    (term,) = query_vector("sessions").indices

    def weight(vector: SparseVector) -> float:
        return float(vector.values[vector.indices == term][0])

    assert weight(named) > weight(telling)


def test_two_words_with_one_id_share_one_weight() -> None:
    """Qdrant refuses a vector with an index twice."""
    words_with_one_id = "capukut dapakud"
    assert len(query_terms(words_with_one_id)) == 2
    assert document_vector(words_with_one_id).indices.size == 1
    assert query_vector(words_with_one_id).values.tolist() == [1.0]


@given(st.text(max_size=80))
def test_a_query_weighs_each_term_of_any_text_once(text: str) -> None:
    vector = query_vector(text)
    assert set(vector.indices.tolist()) == {mmh3.hash(term, signed=False) for term in query_terms(text)}
    assert len(set(vector.indices.tolist())) == len(vector.indices)
    assert (vector.values == 1).all()
    assert all(term and not term.isspace() for term in terms(text))


def test_a_hostile_repository_cannot_fill_the_memory() -> None:
    remembered = sparse.Remembered(sparse._ids)
    for start in range(0, sparse._REMEMBERED_WORDS + 10):
        remembered[f"w{start}" + "aB" * 31]
    assert len(remembered) <= sparse._REMEMBERED_WORDS
    remembered["x" * 100_000]
    assert "x" * 100_000 not in remembered
    heaviest = max(sum(map(sys.getsizeof, ids)) + sys.getsizeof(ids) for ids in remembered.values())
    assert heaviest * sparse._REMEMBERED_WORDS < 64 << 20


@given(st.lists(st.text(st.characters(exclude_characters="\n")), max_size=6), st.text())
def test_the_terms_of_a_line_are_those_it_has_by_itself(lines: list[str], query: str) -> None:
    wanted = query_terms(f"{query} {' '.join(lines[:2])}")
    assert terms_in_lines(lines, wanted) == [wanted & query_terms(line) for line in lines]
