"""What commits say of files, as numbers: which files a question is like, and what is kept of it."""

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.embedding.commit_words import MOST_COMMITS, MOST_FILES, CommitWords, file_number
from reposync.embedding.sparse import query_vector

COMMITS = [
    ("Retry a payment after a timeout", ["billing/client.py"]),
    ("Convert amounts between currencies", ["billing/rates.py", "tests/test_rates.py"]),
    ("Format", ["billing/client.py", "billing/rates.py"]),
]


def like(words: CommitWords, question: str) -> Mapping[int, float]:
    return words.likeness(query_vector(question).indices)


def test_the_files_of_a_similar_commit_are_like_the_question() -> None:
    found = like(CommitWords.of(COMMITS), "payments are not retried after timeouts")
    assert list(found) == [file_number("billing/client.py")]


def test_the_more_of_the_question_a_commit_says_the_more_its_files_are_like_it() -> None:
    words = CommitWords.of([("Retry a payment after a timeout", ["a.py"]), ("Read the timeout", ["b.py"])])
    found = like(words, "retry the payment after the timeout")
    assert found[file_number("a.py")] > found[file_number("b.py")] > 0


def test_a_commit_says_half_as_much_of_each_of_two_files() -> None:
    one, two = (CommitWords.of([("Convert amounts", paths)]) for paths in (["a.py"], ["a.py", "b.py"]))
    of_one, of_two = (like(words, "convert amounts")[file_number("a.py")] for words in (one, two))
    assert of_one == pytest.approx(2 * of_two)


def test_several_commits_of_a_file_count_together() -> None:
    words = CommitWords.of([("Convert amounts", ["a.py"]), ("Convert amounts again", ["a.py"]), ("Convert", ["b.py"])])
    found = like(words, "convert amounts")
    assert found[file_number("a.py")] > 2 * found[file_number("b.py")]


def test_a_commit_that_changed_many_files_or_is_old_says_nothing() -> None:
    many = ("Convert amounts", [f"{number}.py" for number in range(MOST_FILES + 1)])
    newer = [("Something else", ["other.py"])] * MOST_COMMITS
    assert not like(CommitWords.of([many]), "convert amounts")
    assert not like(CommitWords.of([*newer, ("Convert amounts", ["old.py"])]), "convert amounts")
    assert like(CommitWords.of([many, *newer[1:], ("Convert amounts", ["old.py"])]), "convert amounts")


def test_neither_words_nor_paths_can_be_read_from_what_is_stored() -> None:
    stored = CommitWords.of(COMMITS).stored()
    assert b"payment" not in stored and b"billing" not in stored


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[:-1], lambda b: b + b"\0", lambda b: b"\x02" + b[1:]])
def test_what_a_different_release_wrote_is_not_read(damage: Callable[[bytes], bytes]) -> None:
    assert CommitWords.read(damage(CommitWords.of(COMMITS).stored())) is None


subjects = st.text(max_size=40) | st.sampled_from(
    ["convert amounts", "convert", "the and of", "\ud800", "写真 アルバム"]
)
paths = st.text(max_size=20) | st.sampled_from(["a.py", "b.py", "\udcff"])
histories = st.lists(st.tuples(subjects, st.lists(paths, max_size=MOST_FILES + 1, unique=True)), max_size=20)


@given(histories, subjects)
def test_what_is_read_again_says_the_same_and_only_of_files_of_the_history(
    commits: list[tuple[str, list[str]]], question: str
) -> None:
    words = CommitWords.of(commits)
    read = CommitWords.read(words.stored())
    assert read is not None and read.size_bytes == words.size_bytes
    found = like(words, question)
    assert like(read, question) == found
    assert found.keys() <= {file_number(path) for _, changed in commits for path in changed}
    assert all(0 < share <= len(commits) for share in found.values())
