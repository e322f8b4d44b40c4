from __future__ import annotations

import re
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from reposync.embedding.sparse import query_terms
from reposync.search.snippets import Snippet, best_snippet
from reposync.symbol import Symbol

CODE = """import os
import threading


class Pool:
    def __init__(self, size):
        self.size = size
        self.lock = threading.Lock()

    def resize(self, size):
        with self.lock:
            self.size = size

    def _reap_idle_connections(self, older_than):
        # Close what nobody has used for a while.
        with self.lock:
            for connection in list(self.idle):
                if connection.last_used < older_than:
                    connection.close()

    def close(self):
        self.size = 0
"""


def snippet(text: str, query: str, start_line: int = 1, max_lines: int = 8) -> Snippet:
    return best_snippet(text, start_line, query, max_lines)


def test_the_lines_that_answer_the_query_are_shown_with_their_numbers_in_the_file() -> None:
    found = snippet(CODE, "close idle connections of the pool", start_line=101)
    by_number = {line.number: line for line in found.lines}
    assert found.best_line == 114
    assert by_number[114].text == "    def _reap_idle_connections(self, older_than):"
    assert by_number[114].matches
    assert by_number[119].matches
    assert not by_number[116].matches
    assert len(found.lines) <= 8
    assert [line.number for line in found.lines] == list(range(found.start_line, found.start_line + len(found.lines)))


def test_a_rare_term_weighs_more_than_one_that_stands_everywhere() -> None:
    text = "self.size = self.size\n" * 40 + "self.watchdog()\n" + "self.size = self.size\n" * 40
    assert snippet(text, "self size watchdog").best_line == 41


def test_lines_with_different_terms_beat_lines_that_repeat_one() -> None:
    text = "lease lease lease\n" * 5 + "\n" * 20 + "take the lease\nof the repository\nuntil it expires\n"
    assert 26 <= snippet(text, "repository lease expires", max_lines=3).start_line <= 27


def test_without_any_match_the_first_lines_that_say_something_are_shown() -> None:
    found = snippet("\n\n\nfirst\nsecond\n", "unrelated", start_line=5)
    assert (found.start_line, found.best_line) == (8, 8)
    assert [line.text for line in found.lines] == ["first", "second"]
    assert not any(line.matches for line in found.lines)


def test_chinese_and_japanese_are_found_without_spaces() -> None:
    text = "# 关闭连接\n" + "# 其他内容\n" * 20 + "# このロックはリポジトリごとに取得する\n"
    assert [snippet(text, query).best_line for query in ("連接 关闭", "リポジトリのロック")] == [1, 22]


def test_a_long_line_is_cut_around_its_match() -> None:
    filler = "{'key': 'value'}, " * 100
    for text in (filler + "watchdog_timeout, " + filler, "値" * 900 + "監視装置" + "値" * 900):
        query = "watchdog timeout" if "watchdog" in text else "監視装置"
        (line,) = snippet(text, query).lines
        assert len(line.text) <= 160
        assert line.text.startswith("…")
        assert line.text.endswith("…")
        assert ("watchdog_timeout" in line.text) or ("監視装置" in line.text)


def test_hostile_text_cannot_move_the_cursor_or_reorder_the_line() -> None:
    (line,) = snippet("\x1b[2Jrm\x07 -rf\x00\x7f \u202e\u200b\u2028 ok\r\n", "rm").lines
    assert line.text == "␛[2Jrm␇ -rf␀␡ ��� ok"


def test_tabs_and_line_ends_do_not_disturb_the_columns() -> None:
    assert [line.text for line in snippet("\tif x:\r\n\t\ty()   \r\n", "x").lines] == ["    if x:", "        y()"]


@given(
    st.one_of(
        st.text(max_size=500), st.lists(st.sampled_from(["lock", "\n", " ", "\t", "x" * 200, "\r\n"])).map("".join)
    ),
    st.integers(1, 10_000),
    st.text(max_size=30),
    st.integers(1, 12),
)
def test_a_snippet_of_anything_stands_in_its_chunk_and_is_safe_to_print(
    text: str, start_line: int, query: str, max_lines: int
) -> None:
    found = snippet(text, query, start_line, max_lines)
    last_line = start_line + text.count("\n")
    numbers = [line.number for line in found.lines]
    assert 1 <= len(numbers) <= max_lines
    assert numbers == list(range(found.start_line, found.start_line + len(numbers)))
    assert start_line <= numbers[0] <= found.best_line <= numbers[-1] <= last_line
    lines = text.split("\n")
    for line in found.lines:
        assert len(line.text) <= 160
        assert not re.search(r"[\x00-\x1f\x7f-\x9f]", line.text)
        assert not any(unicodedata.category(character) in {"Cf", "Zl", "Zp"} for character in line.text)
        if lines[line.number - start_line].isascii() and lines[line.number - start_line].isalnum():
            assert line.text.strip("…") in lines[line.number - start_line]
    matching = {number for number, line in enumerate(lines, start_line) if query_terms(query) & query_terms(line)}
    assert not matching or any(line.matches for line in found.lines)


def test_a_definition_that_fits_is_shown_whole() -> None:
    text = "import os\n\ndef first(x):\n    y = x\n    return needle(y)\n\ndef second():\n    pass\n"
    symbols = [Symbol("first", "function", 13, 15), Symbol("second", "function", 17, 18)]
    snippet = best_snippet(text, 11, "needle", symbols=symbols)
    assert [line.number for line in snippet.lines] == [13, 14, 15]
    assert snippet.best_line == 15


def test_the_smallest_definition_around_the_match_counts_and_one_that_is_too_long_does_not() -> None:
    text = "class A:\n    def f(self):\n        needle()\n" + "    x = 1\n" * 20
    symbols = [Symbol("A", "class", 1, 23), Symbol("f", "method", 2, 3)]
    assert [line.number for line in best_snippet(text, 1, "needle", symbols=symbols).lines] == [2, 3]
    whole = best_snippet(text, 1, "needle", symbols=symbols[:1])
    assert len(whole.lines) == 8


def test_lines_of_a_definition_outside_of_the_text_are_not_shown() -> None:
    symbols = [Symbol("f", "function", 1, 9)]
    snippet = best_snippet("a\nneedle\nb\n", 5, "needle", symbols=symbols)
    assert [line.number for line in snippet.lines] == [5, 6, 7]


POOL = [Symbol("Pool", "class", 5, 22), Symbol("resize", "method", 10, 12), Symbol("close", "method", 21, 22)]


def test_a_definition_that_was_searched_for_is_shown_from_its_own_line() -> None:
    found = best_snippet(CODE, 1, "Pool", symbols=POOL, definitions=POOL[:1])
    assert (found.start_line, found.best_line, len(found.lines)) == (5, 5, 8)
    small = best_snippet(CODE, 1, "size", symbols=POOL, definitions=POOL[1:2])
    assert [line.number for line in small.lines] == [10, 11, 12]


def test_of_several_definitions_the_one_that_matches_best_is_shown() -> None:
    methods = [*POOL[1:], Symbol("_reap_idle_connections", "method", 14, 19)]
    assert best_snippet(CODE, 1, "close", definitions=methods).start_line == 21
    assert best_snippet(CODE, 1, "last used", definitions=methods).start_line == 14, "by what is in it"
