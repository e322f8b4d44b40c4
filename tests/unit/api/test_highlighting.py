import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from reposync.api.web import highlighting
from reposync.api.web.highlighting import MAX_HIGHLIGHTED_CHARS, highlighted_lines, snippet_rows
from reposync.embedding.sparse import query_terms
from reposync.search.snippets import best_snippet

LANGUAGES = ["python", "javascript", "rust", "shell", "markdown", "html", "haskell", "ruby", "json", None]
CODE = st.text(st.sampled_from("\"'`#/*-{}<>&\\ ab_(;%!") | st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]))


@given(lines=st.lists(CODE, min_size=1, max_size=8), language=st.sampled_from(LANGUAGES))
def test_rows_have_the_text_of_their_lines_and_no_tags_but_ours(lines: list[str], language: str | None) -> None:
    rows = snippet_rows("\n".join(lines), 0, lines, language, query_terms("ab"))
    expected = [html.escape(line, quote=False) for line in lines]
    assert [re.sub(r'</?mark>|</span>|<span class="\w+">', "", row) for row in rows] == expected
    for row in rows:
        assert row.count("<span") == row.count("</span>")
        assert row.count("<mark>") == row.count("</mark>")


def shown(code: str, language: str | None, query: str = "") -> str:
    return brief(snippet_rows(code, 0, code.split("\n"), language, query_terms(query)))


def brief(rows: list[Markup]) -> str:
    """The HTML with `c[…]` in place of `<span class="c">…</span>`, and `*…*` of marks."""
    spans = re.sub(r'<span class="(\w+)">', r"\1[", "\n".join(rows)).replace("</span>", "]")
    return html.unescape(re.sub("</?mark>", "*", spans))


@pytest.mark.parametrize(
    ("language", "code", "expected"),
    [
        ("python", "return None  # if so", "k[return] kc[None]  c1[# if so]"),
        ("python", "def f(a):\n    '''Two\n    lines'''", "k[def] nf[f](a):\n    sd['''Two]\nsd[    lines''']"),
        ("rust", "fn f<'a>(x: &'a str) {} // x", "k[fn] nf[f]o[<]o[']na[a]o[>](x: kp[&]o[']na[a] kt[str]) {} c1[// x]"),
        ("javascript", "const a = `#` /* if\nnot */", "kd[const] nx[a] o[=] sb[`]sb[#]sb[`] cm[/* if]\ncm[not */]"),
        ("shell", 'for f in src/*; do echo "# $f"', 'k[for] f k[in] src/*; k[do] nb[echo] s2["]s2[# ]nv[$f]s2["]'),
        ("markdown", "# don't; it isn't", "gh[# don't; it isn't]"),
        ("no language", "return 'x' # y", "return 'x' # y"),
        (None, "return 'x' # y", "return 'x' # y"),
    ],
)
def test_comments_strings_and_keywords_stand_out(language: str | None, code: str, expected: str) -> None:
    assert shown(code, language) == expected


def test_words_of_the_query_are_marked_in_code_comments_and_strings() -> None:
    code = 'return parse_config("config & more")  # returned configs'
    expected = 'k[*return*] *parse_config*(s2["]s2[*config* & more]s2["])  c1[# *returned* *configs*]'
    assert shown(code, "python", "config returns") == expected


IT = "    a line of it"
DOCSTRING = ["class Session:", '    """', "    if the cookie is or for", *[IT] * 9, '    """', "    size = 1"]


def test_lines_are_coloured_by_what_stands_before_them() -> None:
    rows = snippet_rows("\n".join(DOCSTRING), 10, DOCSTRING[10:], "python", frozenset())
    expected = [f"sd[{IT}]", f"sd[{IT}]", 'sd[    """]', "    size o[=] mi[1]"]
    assert brief(rows).split("\n") == brief(highlighted_lines(DOCSTRING, "python", 10)).split("\n") == expected


def test_a_line_that_is_cut_and_one_with_tabs_keep_their_colours() -> None:
    code = "x = 1\n\tif x:  # é\u202e\n" + "y = " + "'a' + " * 60 + "'b'"
    shown = best_snippet(code, 1, "b", 3).lines
    rows = snippet_rows(code, 0, [each.text for each in shown], "python", frozenset())
    assert brief(rows[1:2]) == "    k[if] x:  c1[# é\N{REPLACEMENT CHARACTER}]"
    assert rows[2].startswith("…") and rows[2].endswith('<span class="s1">b</span><span class="s1">\'</span>')


def test_every_line_of_a_long_file_has_colours_and_beyond_a_limit_none(monkeypatch: pytest.MonkeyPatch) -> None:
    # The limit of length is at issue: on a slow processor the one of time may come first.
    monkeypatch.setattr(highlighting, "MAX_LEXER_SECONDS", 60.0)
    lines = ["def f():", "    return 'it'  # why", "", ""] * 425
    assert sum(map(len, lines)) > 12_000 and len(lines) == 1_700
    for first in (0, 1_000):
        rows = highlighted_lines(lines, "python", first)
        assert [bool(line) for line in lines[first:]] == ["<span" in row for row in rows]

    many = ["a = 'it'"] * (MAX_HIGHLIGHTED_CHARS // 8)
    rows = highlighted_lines(many, "python")
    assert len(rows) == len(many)
    assert "<span" in rows[0] and "<span" not in rows[-1], "the rest of a longer part is plain"
    assert "<span" in highlighted_lines(many, "python", len(many) - 10)[-1], "those before may be many"


@pytest.mark.parametrize(("language", "piece"), [("rust", "/* "), ("javascript", "`a "), ("ruby", "%w( ")])
def test_text_that_is_hostile_to_a_lexer_is_shown_whole(language: str, piece: str) -> None:
    lines = [piece * (400 // len(piece))] * 200
    rows = highlighted_lines(lines, language)
    assert [html.unescape(re.sub(r"</?span[^>]*>", "", row)) for row in rows] == lines
