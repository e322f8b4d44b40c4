"""The order of candidates: what defines a name, or is named after the question, comes before what uses it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.search.ranking import Question, ranked
from reposync.vectors.port import Candidate


def hit(path: str, *names: str, score: float = 0.5, language: str | None = None) -> Candidate:
    return Candidate(path, "v", "r", path, 1, 9, language, names, score, {"words": score, "meaning": 0.0})


def first(question: str, *hits: Candidate) -> str:
    return ranked(Question(question), hits)[0].path


@pytest.mark.parametrize(
    "question",
    ["parse_config", "parseConfig", "where is parse_config called", "how to parse config files", "Loader.parse_config"],
)
def test_the_chunk_that_defines_what_the_question_names_is_first(question: str) -> None:
    assert first(question, hit("a.py", score=0.6), hit("b.py", "main", "parse_config", score=0.4)) == "b.py"


@pytest.mark.parametrize(
    "question", ["session store", "how are sessions stored", "routing of sessions", "the session middleware"]
)
def test_a_file_that_is_named_after_the_question_is_first(question: str) -> None:
    assert first(question, hit("src/http/response.py", score=0.6), hit("src/session.py", score=0.5)) == "src/session.py"


@pytest.mark.parametrize("name", ["removeExpiredSession", "session_removal", "Remover"])
def test_a_name_is_found_by_other_forms_of_its_words(name: str) -> None:
    question = "where are the expired sessions removed"
    assert first(question, hit("a.py", "main", score=0.55), hit("b.py", name, score=0.5)) == "b.py"


def test_one_word_of_a_long_question_names_no_file() -> None:
    answer, named = hit("src/http/base.py", score=0.7), hit("src/session.py", score=0.5)

    assert first("expired session", answer, named) == named.path
    long = "raise an error unless the response that a session returned was complete and signed by a known server"
    assert first(long, answer, named) == answer.path


def test_a_folder_that_the_question_names_counts_too() -> None:
    assert first("render a template", hit("src/mail/base.py"), hit("src/templates/base.py")) == "src/templates/base.py"


@pytest.mark.parametrize(
    ("path", "asking"),
    [
        ("tests/test_session.py", "test"),
        ("src/session_test.go", "tests"),
        ("src/session.spec.ts", "spec"),
        ("java/SessionTest.java", "test"),
        ("examples/session.py", "example"),
        ("benches/session.rs", "benchmark"),
        ("src/compat/session.py", "compatibility"),
        ("vendor/session.go", "vendored"),
        ("changelog.d/session.md", "changelog"),
        ("whatsnew/session.rst", "released"),
        ("session.md", "documented"),
        ("session.3", "manual"),
    ],
)
def test_code_that_only_uses_the_answer_comes_after_it_unless_it_is_asked_for(path: str, asking: str) -> None:
    answer = hit("src/session.py", score=0.5)
    assert first("how does a session expire", hit(path, score=0.55), answer) == "src/session.py"
    assert first(f"{asking} how a session expires", hit(path, score=0.55), answer) == path


@pytest.mark.parametrize("language", ["python", "ocaml"])
def test_code_that_only_names_what_others_define_comes_after_them(language: str) -> None:
    question, answer = "session store", hit("src/store/core.py", "connect", score=0.5, language=language)
    names, defines = (hit("src/store/__init__.py", *each, score=0.55, language=language) for each in ((), ("open",)))
    assert first(question, names, answer) == "src/store/core.py"
    assert first(question, defines, answer) == "src/store/__init__.py"


@pytest.mark.parametrize("language", ["markdown", "yaml", None])
def test_text_without_definitions_counts_in_full_where_there_are_none(language: str | None) -> None:
    text, code = hit("tables", score=0.55, language=language), hit("a.py", "main", score=0.5, language="python")
    assert first("expired sessions", text, code) == "tables"


def parts_of(chunk: Candidate) -> float:
    """The score that its parts say."""
    parts = dict(chunk.parts)
    prior = parts.pop("prior")
    return sum(parts.values()) * prior


def test_the_parts_of_a_score_say_how_it_came_about() -> None:
    found = [hit("src/session.py", score=0.5, language="python"), hit("tests/session.py", "session", score=0.4)]
    for each in ranked(Question("session"), found):
        assert each.score == pytest.approx(parts_of(each))


def test_a_changelog_which_tells_of_everything_comes_after_a_page_that_tells_of_it() -> None:
    page, log = hit("guide/server.md", score=0.5), hit("CHANGELOG.md", score=0.55)
    assert first("how does a session expire", log, page) == page.path


def test_a_file_of_which_two_places_were_found_comes_before_one_with_a_slightly_better_place() -> None:
    twice = [hit("src/server.py", "open", score=0.5), hit("src/server.py", "close", score=0.45)]
    once = hit("src/client.py", "connect", score=0.52)

    order = ranked(Question("how does it expire"), [once, *twice])

    assert [each.path for each in order] == ["src/server.py", "src/client.py", "src/server.py"]
    assert order[0].parts["file"] == pytest.approx(0.1 * 0.45)
    other = Candidate(
        "x", "another version", "r", "src/client.py", 1, 9, None, ["close"], 0.51, {"words": 0.51, "meaning": 0.0}
    )
    assert ranked(Question("how does it expire"), [*twice, once, other])[0].path == "src/server.py"


def test_a_file_whose_commits_are_like_the_question_comes_before_one_that_has_its_words_slightly_better() -> None:
    found = [hit("src/client.py", "connect", score=0.6), hit("src/server.py", "open", score=0.5)]
    order = ranked(Question("how does it expire"), found, {("v", "src/server.py"): 0.2})
    assert [each.path for each in order] == ["src/server.py", "src/client.py"]
    assert order[0].parts["commits"] == 0.2 and "commits" not in order[1].parts


def test_commits_bring_the_best_place_of_a_file_forward_and_not_all_of_them() -> None:
    places = [hit("src/server.py", "open", score=score) for score in (0.5, 0.48)]
    other = hit("src/client.py", "connect", score=0.55)
    order = ranked(Question("how does it expire"), [other, *places], {("v", "src/server.py"): 0.3})
    assert [each.path for each in order] == ["src/server.py", "src/client.py", "src/server.py"]


def test_commits_add_a_bounded_part_in_proportion() -> None:
    found = [hit("a.py", score=0.5), hit("tests/test_b.py", score=0.5)]
    order = ranked(Question("expired sessions"), found, {("v", "a.py"): 3.0, ("v", "tests/test_b.py"): 1.5})
    assert [each.parts["commits"] for each in order] == [pytest.approx(0.4), pytest.approx(0.2)]
    assert all(each.score == pytest.approx(parts_of(each)) for each in order)


@pytest.mark.parametrize(("language", "second"), [("markdown", "src/client.py"), ("python", "log.x")])
def test_a_second_place_in_a_page_comes_after_other_files_and_one_in_code_does_not(language: str, second: str) -> None:
    places = [hit("log.x", "open", score=score, language=language) for score in (0.6, 0.55)]
    other = hit("src/client.py", "connect", score=0.4, language="python")

    order = ranked(Question("how does it expire"), [*places, other])

    assert [each.path for each in order][:2] == ["log.x", second]
    assert all(each.score == pytest.approx(parts_of(each)) for each in order)


def test_words_that_every_question_has_name_nothing() -> None:
    named = hit("src/how/does/work.py", "work", score=0.5)
    assert first("how does this work", named, hit("a.py", score=0.51)) == "a.py"


def test_a_single_identifier_is_recognised() -> None:
    assert Question("parse_config").is_identifier and Question("Loader::parse").is_identifier
    assert not Question("parse config").is_identifier and not Question("what?").is_identifier


texts = st.text(max_size=300) | st.sampled_from(["::", "_", "a" * 5_000, "\ud800", "def " * 500, "写真 アルバム"])
hits = st.builds(hit, texts, texts, texts, score=st.floats(0, 1))


@given(texts, st.lists(hits, max_size=8))
def test_ranking_loses_no_candidate_and_invents_none(question: str, found: list[Candidate]) -> None:
    order = ranked(Question(question), found)
    assert sorted(each.path for each in order) == sorted(each.path for each in found)
    assert all(one.score >= other.score for one, other in pairwise(order))
