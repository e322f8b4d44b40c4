"""Questions whose answers a repository knows: what a commit or a merge request says, and the files that it changed.

The rules leave out what would make a question too easy, unanswerable, or no question at all.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from reposync.search.query import read_filters
from reposync.search.ranking import is_changelog
from reposync.sources.commit_kinds import is_bot, is_format, is_revert, without_numbers
from reposync.sources.port import FileChange, MergedRequest, PastCommit, TreeEntry, path_text

MAX_FILES: Final = 5
MIN_WORDS: Final = 3
MAX_QUESTION_CHARS: Final = 1_000
"""The rest of a merge request's description is left out."""


class LeftOut(StrEnum):
    """Why a commit is no question. Each counts once, by the first rule that holds."""

    MERGE = "merge"
    FIRST = "first"
    BOT = "bot"
    REVERT = "revert"
    FORMAT = "format"
    MANY_FILES = "many_files"
    NO_FILES = "no_files"
    CHANGELOG = "changelog"
    DELETED = "deleted"
    NOT_INDEXED = "not_indexed"
    SHORT = "short"
    NAMED = "named"
    REPEATED = "repeated"


RULES: Final[Mapping[LeftOut, str]] = {
    LeftOut.MERGE: "merge commits",
    LeftOut.FIRST: "no parent to compare with",
    LeftOut.BOT: "by a bot",
    LeftOut.REVERT: "reverts",
    LeftOut.FORMAT: "format, versions or names only",
    LeftOut.MANY_FILES: f"changed more than {MAX_FILES} files",
    LeftOut.NO_FILES: "changed no file",
    LeftOut.CHANGELOG: "changed a changelog only",
    LeftOut.DELETED: "files are not there",
    LeftOut.NOT_INDEXED: "files are not indexed",
    LeftOut.SHORT: f"fewer than {MIN_WORDS} words",
    LeftOut.NAMED: "name the file",
    LeftOut.REPEATED: "the same text again",
}

_DRAFT: Final = re.compile(r"(?i)^\s*(?:(?:draft|wip)\s*:|\[(?:draft|wip)\]|\(draft\))\s*")
_RESOLVE: Final = re.compile(r'^Resolve "(.+)"$')
_COMMENT: Final = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_LINK: Final = re.compile(r"https?://\S+")
_WORD: Final = re.compile(r"[^\W\d_]{2,}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufeff\ufffd\ud800-\udfff]+")


@dataclass(frozen=True, slots=True)
class PastQuestion:
    """`paths`: the files that it changed and that are indexed. `commit`: which changed them. `request`: the number of
    the merge request whose text it is. `changes`: what has to be more than white space."""

    text: str
    paths: tuple[str, ...]
    commit: str
    request: int | None = None
    changes: tuple[FileChange, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Chosen:
    """`left_out`: how many commits that are as new as the oldest question are none, by the reason."""

    questions: Sequence[PastQuestion]
    left_out: Mapping[LeftOut, int]


def judged(
    commits: Sequence[PastCommit], requests: Sequence[MergedRequest], indexed: Mapping[str, bool] | None
) -> Iterator[tuple[PastCommit, PastQuestion | LeftOut]]:
    """What each commit is, in their order. `indexed`: all files of the state that is searched, and whether they have
    chunks; None: not known yet. White space is not compared yet."""
    by_commit = {request.commit: request for request in requests}
    seen = set[str]()
    for commit in commits:
        request = by_commit.get(commit.sha)
        verdict = _judged(commit, request, indexed)
        if isinstance(verdict, PastQuestion):
            titles = {_folded(verdict.text), *([_folded(_cleaned(request.title))] if request is not None else [])}
            if titles & seen:
                verdict = LeftOut.REPEATED
            seen |= titles
        yield commit, verdict


def chosen(
    verdicts: Sequence[tuple[PastCommit, PastQuestion | LeftOut]], unchanged: set[tuple[str, str]], most: int
) -> Chosen:
    """The first `most` questions. `unchanged`: pairs of blobs, before and after, that differ in white space alone."""
    questions, left_out = list[PastQuestion](), Counter[LeftOut]()
    for _, verdict in verdicts:
        if len(questions) == most:
            break
        if isinstance(verdict, LeftOut):
            left_out[verdict] += 1
        elif all(is_unchanged(change, unchanged) for change in verdict.changes):
            left_out[LeftOut.FORMAT] += 1
        else:
            questions.append(replace(verdict, changes=()))
    return Chosen(questions, {rule: left_out[rule] for rule in LeftOut if left_out[rule]})


def is_unchanged(change: FileChange, unchanged: set[tuple[str, str]]) -> bool:
    before, after = change.before, change.after
    return (
        before is not None and after is not None and (before.sha == after.sha or (before.sha, after.sha) in unchanged)
    )


def without_space(content: bytes) -> bytes:
    return b"".join(content.split())


def answers(paths: Sequence[str], indexed: Mapping[str, bool] | None) -> tuple[str, ...] | LeftOut:
    """The paths that can be found."""
    if indexed is None:
        return tuple(paths)
    if found := tuple(path for path in paths if indexed.get(path)):
        return found
    return LeftOut.NOT_INDEXED if any(path in indexed for path in paths) else LeftOut.DELETED


def narrowed(
    questions: Sequence[PastQuestion], indexed: Mapping[str, bool], left_out: Counter[LeftOut]
) -> list[PastQuestion]:
    """Those that have an answer among the files of a state; the others are counted."""
    kept = list[PastQuestion]()
    for question in questions:
        paths = answers(question.paths, indexed)
        if isinstance(paths, LeftOut):
            left_out[paths] += 1
        else:
            kept.append(replace(question, paths=paths))
    return kept


def _judged(
    commit: PastCommit, request: MergedRequest | None, indexed: Mapping[str, bool] | None
) -> PastQuestion | LeftOut:
    if len(commit.parents) > 1 and request is None:
        return LeftOut.MERGE
    if commit.changes is None:
        return LeftOut.FIRST
    people = [request.author] if request is not None else [commit.author, commit.email]
    if is_bot(people):
        return LeftOut.BOT
    subject = commit.subject if request is None else _title(request.title)
    if is_revert(subject) or (request is None and is_revert(commit.message)):
        return LeftOut.REVERT
    title = _cleaned(subject)
    if is_format(title):
        return LeftOut.FORMAT
    changes = [change for change in commit.changes if not _is_submodule(change)]
    # A changelog repeats what its commit says.
    files = [change for change in changes if not _is_changelog(change)]
    if commit.has_more or len(files) > MAX_FILES:
        return LeftOut.MANY_FILES
    if not files:
        return LeftOut.CHANGELOG if changes else LeftOut.NO_FILES
    changed = [change.after for change in files if change.after is not None]
    paths = answers([path_text(each.path) for each in changed], indexed) if changed else LeftOut.DELETED
    if isinstance(paths, LeftOut):
        return paths
    if len(_WORD.findall(title)) < MIN_WORDS:
        return LeftOut.SHORT
    if names_a_file(title, paths):
        return LeftOut.NAMED
    text = title
    if request is not None:
        longer = _cleaned(f"{title} {_LINK.sub('', _COMMENT.sub('', request.description))}")[:MAX_QUESTION_CHARS]
        text = title if names_a_file(longer, paths) else longer.strip()
    return PastQuestion(text, paths, commit.sha, None if request is None else request.number, tuple(files))


def names_a_file(text: str, paths: Sequence[str]) -> bool:
    """Whether the text has the name of one of the files, or its stem, as a word; also with spaces in the stem."""
    folded = text.casefold()
    for path in paths:
        name = path.rpartition("/")[2].casefold()
        stem = name.lstrip(".").partition(".")[0]
        spaced = re.sub(r"[-_]+", " ", stem).strip()
        for word in {name, stem, spaced}:
            if len(word) > 1 and re.search(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])", folded):
                return True
    return False


def _is_submodule(change: FileChange) -> bool:
    entry: TreeEntry | None = change.after or change.before
    return entry is not None and entry.is_submodule


def _is_changelog(change: FileChange) -> bool:
    return all(is_changelog(path_text(entry.path)) for entry in (change.before, change.after) if entry is not None)


def _title(title: str) -> str:
    title = _DRAFT.sub("", title)
    resolved = _RESOLVE.match(title.strip())
    return resolved[1] if resolved else title


def _cleaned(text: str) -> str:
    """Without numbers of issues, control characters, and what a search would read as a filter."""
    plain = " ".join(_CONTROL.sub(" ", without_numbers(_title(text))).split())
    return plain.replace(":", ": ") if read_filters(plain)[1] else plain


def _folded(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))
