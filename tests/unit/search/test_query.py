"""Filters inside the words of a query."""

import pytest

from reposync.errors import UsageError
from reposync.search.query import MAX_QUERY_CHARS, SearchText, read_query
from reposync.search.similar import Place


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("where are sessions removed", SearchText("where are sessions removed")),
        ("symbol:parse_config", SearchText("parse_config", "parse_config")),
        ("read yaml symbol:parse_config", SearchText("read yaml", "parse_config")),
        ("kind:class session", SearchText("session", None, "class")),
        ("kind:Function symbol:close", SearchText("close", "close", "function")),
        ("kind:struct", SearchText("struct", None, "struct")),
        ('symbol:"operator ==" compare', SearchText("compare", "operator ==")),
        ("symbol:Session::close()", SearchText("close", "close")),
        ("symbol:app.Session.close", SearchText("close", "close")),
        # Text.
        ("std::vector of http://host", SearchText("std::vector of http://host")),
        ("a symbol: x", SearchText("a symbol: x")),
        ('"symbol:parse_config"', SearchText('"symbol:parse_config"')),
        ("mysymbol:x Symbol:x", SearchText("mysymbol:x Symbol:x")),
    ],
)
def test_a_filter_is_a_word_of_its_own_and_other_colons_are_text(text: str, expected: SearchText) -> None:
    assert read_query(text) == expected


def test_filters_beside_the_words_are_the_same_ones() -> None:
    assert read_query("yaml", symbol="a.parse", kind="method") == read_query("yaml symbol:parse kind:method")
    assert read_query("", symbol="parse") == SearchText("parse", "parse")


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(UsageError) as error:
        read_query("kind:functoin x")
    assert "'functoin'" in error.value.message and "'function'" in str(error.value.remedy)


@pytest.mark.parametrize(
    "text", ["", "  ", "kind:class kind:struct x", "symbol:a symbol:b", "symbol:()", "x" * (MAX_QUERY_CHARS + 1)]
)
def test_what_cannot_be_searched_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        read_query(text)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("like:src/session.py:42", Place(None, "src/session.py", 42)),
        ("like:platform/shop:src/session.py:42", Place("platform/shop", "src/session.py", 42)),
        ('like:"shop:a b:c.py:7"', Place("shop", "a b:c.py", 7)),
    ],
)
def test_a_place_is_given_in_place_of_words(text: str, place: Place) -> None:
    assert read_query(text) == SearchText("", like=place)
    assert read_query("", like=text.removeprefix("like:").strip('"')).like == place


@pytest.mark.parametrize("place", ["a.py", "a.py:0", ":3", "a.py:x", "a.py:9999999999"])
def test_what_names_no_line_is_refused(place: str) -> None:
    with pytest.raises(UsageError, match="is not a line of a file"):
        read_query("", like=place)
