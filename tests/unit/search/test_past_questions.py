"""Which commits and merge requests are questions, in real git repositories."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from dulwich.object_format import SHA1

from reposync.search.evaluation import Question
from reposync.search.past_questions import LeftOut, PastQuestion, chosen, judged, names_a_file, without_space
from reposync.sources.history import read_history
from reposync.sources.object_stores import ObjectDirectories
from reposync.sources.port import MergedRequest, PastCommit, path_text
from tests.fixtures.repositories import GitRepository, Submodule

WORDS = "Expire old sessions at midnight"


@pytest.fixture
def repository(tmp_path: Path) -> GitRepository:
    made = GitRepository.create(tmp_path / "project.git")
    made.commit({"src/timeouts.py": b"one = 1\n", "src/billing.py": b"two = 2\n"}, message="Start the whole project")
    return made


def past(repository: GitRepository, most: int = 1_000) -> list[PastCommit]:
    """Of the newest commit, and those before."""
    objects = ObjectDirectories(repository.path / "objects", SHA1, where="here")
    return read_history(objects, repository.head() or "", most, threading.Event())


def verdict_of(
    repository: GitRepository, *requests: MergedRequest, indexed: Mapping[str, bool] | None = None
) -> PastQuestion | LeftOut:
    """What the newest commit is."""
    return next(judged(past(repository), requests, indexed))[1]


def request_of(commit: str, title: str, description: str = "", author: str = "ada") -> MergedRequest:
    return MergedRequest(7, title, description, author, commit)


def test_a_commit_asks_with_its_subject_for_the_files_that_it_changed(repository: GitRepository):
    sha = repository.commit(
        {"src/timeouts.py": b"one = 3\n", "src/new.py": b"four = 4\n"}, message=f"{WORDS} (#123)\n\nFixes #9"
    )

    question = verdict_of(repository)

    assert isinstance(question, PastQuestion)
    assert (question.text, question.paths, question.commit) == (WORDS, ("src/new.py", "src/timeouts.py"), sha)


LEFT_OUT: dict[str, tuple[LeftOut, dict[str, object]]] = {
    "one of dependabot": (LeftOut.BOT, {"author": "dependabot[bot] <49699333+dependabot[bot]@users.noreply.example>"}),
    "one of renovate": (LeftOut.BOT, {"author": "Renovate Bot <bot@renovateapp.example>"}),
    "one of a bot by its address": (LeftOut.BOT, {"author": "Build <ci-bot@example.com>"}),
    "one of a token of a project": (LeftOut.BOT, {"author": "Sync <project_42_bot_1f@noreply.gitlab.example>"}),
    "one with a bot in its name": (LeftOut.BOT, {"author": "release-bot <ops@example.com>"}),
    "a revert": (LeftOut.REVERT, {"message": 'Revert "Expire old sessions at midnight"'}),
    "a revert by its body": (LeftOut.REVERT, {"message": f"Go back to before\n\nThis reverts commit {'a' * 40}."}),
    "a reformatting": (LeftOut.FORMAT, {"message": "fmt"}),
    "a lint": (LeftOut.FORMAT, {"message": "style: fix lint"}),
    "a version": (LeftOut.FORMAT, {"message": "chore(release): bump version to 2.0"}),
    "a release": (LeftOut.FORMAT, {"message": "Release v1.2.3"}),
    "a bare version": (LeftOut.FORMAT, {"message": "1.2.3-rc1"}),
    "two words": (LeftOut.SHORT, {"message": "Expire sessions!"}),
    "numbers and signs": (LeftOut.SHORT, {"message": "#1 -- 2 3 4 5 (#6)"}),
    "no words": (LeftOut.SHORT, {"message": ""}),
    "binary words": (LeftOut.SHORT, {"message": bytes(range(256))}),
    "the name of the file": (LeftOut.NAMED, {"message": "Expire old ones in timeouts.py"}),
    "the stem of the file": (LeftOut.NAMED, {"message": "Expire all Timeouts at midnight"}),
    "many files": (LeftOut.MANY_FILES, {"files": {f"src/{number}.py": b"1\n" for number in range(6)}}),
    "hundreds of files": (LeftOut.MANY_FILES, {"files": {f"{number}.py": b"1\n" for number in range(300)}}),
    "no file": (LeftOut.NO_FILES, {"files": {}}),
    "a submodule": (LeftOut.NO_FILES, {"files": {"library": Submodule("1" * 40)}}),
    "a changelog": (LeftOut.CHANGELOG, {"files": {"docs/changes.rst": b"- Sessions expire.\n"}}),
    "a part of a changelog": (LeftOut.CHANGELOG, {"files": {"newsfragments/12.bugfix": b"Sessions expire.\n"}}),
    "a deletion": (LeftOut.DELETED, {"files": {"src/billing.py": None}}),
}


@pytest.mark.parametrize("what", LEFT_OUT)
def test_left_out_is(repository: GitRepository, what: str):
    rule, given = LEFT_OUT[what]
    files = given.pop("files", {"src/timeouts.py": b"one = 3\n"}) if "files" in given else {"src/timeouts.py": b"3\n"}
    repository.commit(files, **{"message": WORDS, **given})  # type: ignore[arg-type]

    assert verdict_of(repository) is rule


NOT_LEFT_OUT = (
    "Format the amounts of an invoice",
    "Bots may not sign in any more",
    "Version the index by its settings",
    "Release the lock when a worker dies",
    "Fix the style of the third heading in reports",
    "Merge equal rows of two pages",
    "Upgrade old tables when the program starts",
    "Reverted rows are counted again",
)


@pytest.mark.parametrize("words", NOT_LEFT_OUT)
def test_words_that_only_look_alike_are_questions(repository: GitRepository, words: str):
    repository.commit({"src/timeouts.py": b"one = 3\n"}, message=words, author="Ada Abbot <ada@abbot.example>")
    assert isinstance(verdict_of(repository), PastQuestion)


def test_the_first_commit_and_merges_are_left_out(repository: GitRepository):
    main = repository.head() or ""
    topic = repository.commit({"src/topic.py": b"1\n"}, branch="topic", parents=[main], message="Count what was sold")
    repository.commit({"src/topic.py": b"1\n"}, parents=[main, topic], message="Merge the branch with counts")

    found = [verdict for _, verdict in judged(past(repository), [], None)]

    assert found[0] is LeftOut.MERGE
    assert isinstance(found[1], PastQuestion)
    assert found[2] is LeftOut.FIRST


def test_a_merge_request_asks_for_all_that_its_merge_brought(repository: GitRepository):
    main = repository.head() or ""
    tip = main
    for name in ("topic", "other"):
        tip = repository.commit({f"src/{name}.py": b"1\n"}, branch="topic", parents=[tip], message=f"Add {name}")
    files = {"src/topic.py": b"1\n", "src/other.py": b"1\n"}
    merge = repository.commit(files, parents=[main, tip], message="Merge branch 'topic' into 'main'")
    description = "<!-- a template -->\nIt was slow:\n\nsee https://example.com/x !12\x1b[31m"

    question = verdict_of(repository, request_of(merge, 'Resolve "Count what was sold"', description))

    assert isinstance(question, PastQuestion)
    assert question.text == "Count what was sold It was slow: [31m"
    assert (question.paths, question.request) == (("src/other.py", "src/topic.py"), 7)


def test_a_description_that_names_the_file_is_left_out_and_the_title_asks(repository: GitRepository):
    squashed = repository.commit({"src/timeouts.py": b"3\n"}, message="whatever")

    question = verdict_of(repository, request_of(squashed, f"Draft: {WORDS}", "In `timeouts.py` it was wrong."))
    by_bot = verdict_of(repository, request_of(squashed, WORDS, author="renovate-bot"))

    assert isinstance(question, PastQuestion) and question.text == WORDS
    assert by_bot is LeftOut.BOT


def test_files_that_cannot_be_found_are_no_answers(repository: GitRepository):
    repository.commit({"src/timeouts.py": b"3\n", "logo.png": b"\0"}, message="Show who is online now")

    def paths(**indexed: bool) -> object:
        verdict = verdict_of(repository, indexed={name.replace("_", "."): is_in for name, is_in in indexed.items()})
        return verdict.paths if isinstance(verdict, PastQuestion) else verdict

    assert verdict_of(repository, indexed={}) is LeftOut.DELETED
    assert paths(logo_png=False) is LeftOut.NOT_INDEXED
    question = verdict_of(repository, indexed={"src/timeouts.py": True, "logo.png": False})
    assert isinstance(question, PastQuestion) and question.paths == ("src/timeouts.py",)


def test_a_changelog_answers_nothing_and_code_that_is_named_so_does(repository: GitRepository):
    files = {f"src/{number}.py": b"1\n" for number in range(4)}
    repository.commit({**files, "src/history.py": b"2\n", "CHANGELOG.md": b"- Sessions expire.\n"}, message=WORDS)

    question = verdict_of(repository)

    assert isinstance(question, PastQuestion)
    assert question.paths == (*files, "src/history.py"), "five files: the changelog is none of them"
    assert {path_text(change.after.path) for change in question.changes if change.after} == set(question.paths)


def test_the_same_words_ask_once(repository: GitRepository):
    for number in range(3):
        repository.commit(
            {"src/billing.py": b"%d\n" % number}, message=f"{'SUM' if number else 'Sum'} up the day's sales!"
        )

    found = Counter(
        type(verdict) if isinstance(verdict, PastQuestion) else verdict
        for _, verdict in judged(past(repository), [], None)
    )

    assert found == {PastQuestion: 1, LeftOut.REPEATED: 2, LeftOut.FIRST: 1}


def test_white_space_alone_is_a_format(repository: GitRepository):
    repository.commit({"src/billing.py": b"two  =  2\n\n"}, message="Give the numbers some room")
    repository.commit({"src/lines.py": b"two  =  2\n\n", "src/billing.py": None}, message="Give the file a place")
    verdicts = list(judged(past(repository), [], None))
    changes = [change for _, verdict in verdicts if isinstance(verdict, PastQuestion) for change in verdict.changes]
    read = {
        entry.sha: repository.read(entry.sha) for change in changes for entry in (change.before, change.after) if entry
    }
    equal = {(one, other) for one in read for other in read if without_space(read[one]) == without_space(read[other])}

    assert len(chosen(verdicts, set(), 10).questions) == 1, "a file that only moved has no answer in its text"
    assert chosen(verdicts, equal, 10).left_out == {LeftOut.FIRST: 1, LeftOut.FORMAT: 2}


def test_no_more_questions_are_chosen_than_wanted_and_older_commits_are_not_counted(repository: GitRepository):
    for number in range(6):
        repository.commit(
            {"src/billing.py": b"%d\n" % number}, message="fmt" if number % 2 else f"Count to {number} in words"
        )

    found = chosen(list(judged(past(repository), [], None)), set(), 2)

    assert [each.text for each in found.questions] == ["Count to 4 in words", "Count to 2 in words"]
    assert found.left_out == {LeftOut.FORMAT: 2}


HOSTILE = (
    "path:src/** repo:other where is it",
    "like:src/session.py:42 and three words",
    'lang:"go" where are the words',
    "where " + "word " * 25_000,
    "a\x00b where are \x1b[31m red \u202e words",
    "\ud7ff\ufffe where are these words \U0010ffff",
    "-- ' \" ; DROP TABLE questions where are words",
    "<script>alert(1)</script> where are words",
)


@pytest.mark.parametrize("words", HOSTILE)
def test_whatever_a_subject_holds_is_searched_as_plain_words(repository: GitRepository, words: str):
    repository.commit({"src/billing.py": b"3\n"}, message=words)

    verdict = verdict_of(repository)

    assert isinstance(verdict, PastQuestion)
    question = Question(question=verdict.text, repository="here", paths=verdict.paths)
    assert len(question.question) <= 300
    assert "\0" not in question.question and "\x1b" not in question.question and "\u202e" not in question.question


@pytest.mark.parametrize(
    ("text", "path", "names"),
    [
        ("Fix the parser.py", "src/parser.py", True),
        ("Fix the Parser", "src/parser.py", True),
        ("Fix all parsers", "src/parser.py", False),
        ("Fix the run length", "src/run_length.c", True),
        ("Fix run_lengths", "src/run_length.c", False),
        ("Update the make file", "Makefile", False),
        ("Update a.b", "a", False),
        ("Read the editorconfig", ".editorconfig", True),
        ("Say src more", "src/other.py", False),
        ("Use x(.* here", "x(.*", True),
    ],
)
def test_a_text_names_a_file_by_its_name_or_its_stem(text: str, path: str, names: bool):
    assert names_a_file(text, [path]) is names
