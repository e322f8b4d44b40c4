"""Filters inside the words of a query."""

import pytest

from reposync.errors import UsageError
from reposync.search.query import MAX_PHRASINGS, MAX_QUERY_CHARS, SearchText, read_filters, read_query, with_filters
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
        ("usages:Session::close() repo:a", SearchText("", usages="close", repositories=("a",))),
        ('"symbol:parse_config"', SearchText('"symbol:parse_config"')),
        ("mysymbol:x Symbol:x", SearchText("mysymbol:x Symbol:x")),
    ],
)
def test_a_filter_is_a_word_of_its_own_and_other_colons_are_text(text: str, expected: SearchText) -> None:
    assert read_query(text) == expected


def test_where_is_searched_is_said_among_the_words() -> None:
    asked = read_query('expired sessions repo:payments repo:"a b" path:src/** lang:go')
    assert asked == SearchText("expired sessions", repositories=("payments", "a b"), path="src/**", language="go")
    assert read_query("x repository:payments language:go") == read_query("x repo:payments lang:go")
    assert read_query("x", repository=["payments"], path="src/**") == read_query("x repo:payments path:src/**")


def test_a_text_does_not_leave_the_repositories_that_its_program_searches() -> None:
    assert read_query("x repo:a repo:b", repository=["b", "c"]).repositories == ("b",)
    with pytest.raises(UsageError, match="not among those"):
        read_query("x repo:a", repository="b")


@pytest.mark.parametrize("value", ["plain", "a b", 'say "x"', "a\\b", "C:\\x y\\", "src/**", '"'])
def test_a_filter_that_is_written_is_read_again(value: str) -> None:
    text = with_filters("two  words", {"path": [value], "repo": ["one", value]})
    assert read_filters(text) == ("two  words", {"path": [value], "repo": ["one", value]})


def test_a_text_without_filters_stays_as_it_is() -> None:
    assert read_filters("  def f(  x:y ") == ("  def f(  x:y ", {})


def test_filters_beside_the_words_are_the_same_ones() -> None:
    assert read_query("yaml", symbol="a.parse", kind="method") == read_query("yaml symbol:parse kind:method")
    assert read_query("", symbol="parse") == SearchText("parse", "parse")


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(UsageError) as error:
        read_query("kind:functoin x")
    assert "'functoin'" in error.value.message and "'function'" in str(error.value.remedy)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "kind:class kind:struct x",
        "symbol:a symbol:b",
        "symbol:()",
        "repo:a",
        "x path:a path:b",
        "x" * (MAX_QUERY_CHARS + 1),
    ],
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


# Several phrasings ---------------------------------------------------------------------------------------------------


def test_the_filters_of_each_phrasing_count_for_all_and_equal_phrasings_count_once() -> None:
    asked = read_query(["session  expiry lang:go", "evict repo:a", "session expiry", "TTL sweep repo:b lang:go"])
    assert asked == SearchText("session expiry", repositories=("a", "b"), language="go", others=("evict", "TTL sweep"))
    assert read_query(["one", " one "]) == read_query(["one"]) == read_query("one")


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ([], "The query is empty"),
        (["a"] * (MAX_PHRASINGS + 1), "at most 8 phrasings, and this one has 9"),
        (["sessions", " "], "Phrasing 2 of 2 has no words"),
        (["lang:go", "sessions"], "Phrasing 1 of 2 has no words"),
        (["sessions lang:go", "evict lang:python"], "one `lang`, and this one has 2"),
        (["sessions", "evict like:a.py:1"], "words or for code like that"),
        (["sessions", "x" * (MAX_QUERY_CHARS + 1)], "at most 2,000"),
    ],
)
def test_phrasings_that_cannot_be_searched_together_are_refused(texts: list[str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        read_query(texts)
