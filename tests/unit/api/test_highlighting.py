import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.api.web.highlighting import snippet_rows
from reposync.embedding.sparse import query_terms

LANGUAGES = ["python", "javascript", "rust", "shell", "markdown", "html", "haskell", "ruby", "json", None]
CODE = st.text(st.sampled_from("\"'`#/*-{}<>&\\ ab_(;%!") | st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]))


@given(lines=st.lists(CODE, min_size=1, max_size=8), language=st.sampled_from(LANGUAGES))
def test_rows_have_the_text_of_their_lines_and_no_tags_but_ours(lines: list[str], language: str | None) -> None:
    rows = snippet_rows(lines, language, query_terms("ab"))
    expected = [html.escape(line, quote=False) for line in lines]
    assert [re.sub(r'</?mark>|</span>|<span class="\w+">', "", row) for row in rows] == expected
    for row in rows:
        assert row.count("<span") == row.count("</span>")
        assert row.count("<mark>") == row.count("</mark>")


def shown(code: str, language: str | None, query: str = "") -> str:
    """The HTML with `c[…]` in place of `<span class="c">…</span>`, and `*…*` of marks."""
    rows = snippet_rows(code.split("\n"), language, query_terms(query))
    brief = re.sub(r'<span class="(\w+)">', r"\1[", "\n".join(rows)).replace("</span>", "]")
    return html.unescape(re.sub("</?mark>", "*", brief))


@pytest.mark.parametrize(
    ("language", "code", "expected"),
    [
        ("python", "return None  # if so", "k[return] kc[None]  c1[# if so]"),
        ("python", "def f(a):\n    '''Two\n    lines'''", "k[def] f(a):\n    sd['''Two]\nsd[    lines''']"),
        ("rust", "fn f<'a, 'b>(x: &'a str) {} // x", "k[fn] f<'a, 'b>(x: &'a kt[str]) {} c1[// x]"),
        ("javascript", "const a = `#` /* if\nnot */", "kd[const] a = sb[`#`] cm[/* if]\ncm[not */]"),
        ("shell", 'for f in src/*; do echo "# $f"', 'k[for] f k[in] src/*; k[do] nb[echo] s2["# $f"]'),
        ("markdown", "# don't; it isn't", "# don't; it isn't"),
        ("no language", "return 'x' # y", "return 'x' # y"),
        (None, "return 'x' # y", "return 'x' # y"),
    ],
)
def test_comments_strings_and_keywords_stand_out(language: str | None, code: str, expected: str) -> None:
    assert shown(code, language) == expected


def test_words_of_the_query_are_marked_in_code_comments_and_strings() -> None:
    code = 'return parse_config("config & more")  # returned configs'
    expected = 'k[*return*] *parse_config*(s2["*config* & more"])  c1[# *returned* *configs*]'
    assert shown(code, "python", "config returns") == expected
