"""Why something is not found: it is not indexed yet, a rule excludes it, or nothing matches. One place for all searches
and readers; it knows the repositories that the database shows, and so tells nobody about others."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

from reposync.content.model import REMEDIES, Skip
from reposync.errors import FileNotIndexed
from reposync.search.documents import Missing
from reposync.search.scope import IndexParts, with_inactive
from reposync.store.index_queries import LeftOutFile, UnfinishedRepository, left_out_files, unfinished_repositories
from reposync.store.manifest import ManifestRow, Manifests
from reposync.supervision import in_thread
from reposync.wildmatch import PathPatterns

_MOST_NAMED: Final = 5
_MOST_REPOSITORIES: Final = 20
"""The number of repositories whose excluded files a pattern with wildcards is compared with."""
_WILD: Final = re.compile(r"[*?\[\\!]")
_PLAIN_PATH: Final = re.compile(r"[\w./-]+")

_RULES: Final[Mapping[str, str]] = {
    Skip.SUBMODULE: "it is a submodule",
    Skip.SYMLINK: "it is a symbolic link",
    Skip.EXCLUDED: "`exclude` of the repository names it",
    Skip.NOT_INCLUDED: "`include` of the repository does not name it",
    Skip.LOCK_FILE: "it is a lock file",
    Skip.MINIFIED: "it is minified",
    Skip.VENDORED: "it is third-party code",
    Skip.GENERATED: "it is generated",
    Skip.DATA: "it is data",
    Skip.BINARY: "it is binary",
    Skip.LFS_POINTER: "its content is in Git LFS",
    Skip.TOO_LARGE: "it is larger than `max_file_bytes`",
    Skip.EMPTY: "it is empty",
    Skip.UNDECODABLE: "its encoding is unknown",
    Skip.SECRET: "it holds a secret",
}


class AbsenceParts(IndexParts, Protocol):
    manifests: Manifests


async def missing(
    parts: AbsenceParts, *, repositories: Sequence[str] = (), path: str | None = None, found: int
) -> Missing | None:
    """Why a search of these repositories (none: of all) within the pattern `path` found `found` hits, and no more. None
    if there is nothing to say about those that it found. Raises what the store raises."""
    inactive = with_inactive(parts)
    unfinished = await unfinished_repositories(parts.database, repositories, inactive=inactive)
    never = [each for each in unfinished if not each.is_live]
    if found:
        return _not_indexed(never) if never else None
    if path is not None and (left_out := await _left_out(parts, repositories, path)):
        return _excluded(left_out)
    if never:
        return _not_indexed(never)
    if repositories and unfinished:
        return _older(unfinished)
    return Missing("no_match", "Nothing in the index matches.")


def _not_indexed(repositories: Sequence[UnfinishedRepository]) -> Missing:
    names = [each.name for each in repositories]
    text = f"Not indexed yet: {_listed(names)}. What is in {'it' if len(names) == 1 else 'them'} cannot be found."
    return Missing("not_indexed", text, repositories=names)


def _older(repositories: Sequence[UnfinishedRepository]) -> Missing:
    names = [each.name for each in repositories]
    text = f"Not indexed yet: the newest commit of {_listed(names)}. What is new in it cannot be found."
    return Missing("not_indexed", text, repositories=names)


def _excluded(files: Sequence[LeftOutFile]) -> Missing:
    rules = dict.fromkeys(each.reason for each in files)
    first = files[0]
    if len(files) == 1:
        return Missing("excluded", _excluded_text(first.path, first.repository, first.reason), rule=first.reason)
    by_rule = ", ".join(rule.replace("_", " ") for rule in rules)
    text = f"Excluded by a rule ({by_rule}): {len(files):,} files that match, such as {first.path!r}."
    return Missing("excluded", text, rule=first.reason if len(rules) == 1 else None)


def _excluded_text(path: str, repository: str, rule: str) -> str:
    why = _RULES.get(rule, "it cannot be indexed")
    return f"{path!r} of {repository} is excluded by the rule {rule.replace('_', ' ')}: {why}."


async def _left_out(parts: AbsenceParts, repositories: Sequence[str], path: str) -> list[LeftOutFile]:
    """Files that the pattern matches, and that a rule excludes. Empty if an indexed file matches too, or if there are
    too many repositories to look at."""
    literal = None if _WILD.search(path) or "/" not in path.strip("/") else path.lstrip("/")
    files = await left_out_files(
        parts.database, repositories, path=literal, most_repositories=_MOST_REPOSITORIES, inactive=with_inactive(parts)
    )
    patterns = PathPatterns([path])
    return await in_thread(lambda: [each for each in files if patterns.match(each.path) is not None])


async def file_not_indexed(
    parts: AbsenceParts, version: str, repository: str, path: str, row: ManifestRow | None
) -> FileNotIndexed:
    """The error for a path without points. `row`: of the manifest, if the path is in it."""
    if row is not None and row.skip_reason and not row.is_failed:
        remedy = REMEDIES.get(row.skip_reason)
        return _error(
            Missing("excluded", _excluded_text(path, repository, row.skip_reason), rule=row.skip_reason),
            remedy=f"To have it indexed: {remedy}." if remedy else None,
        )
    if row is not None and row.is_failed:
        text = f"{path!r} of {repository} is not indexed yet: it could not be read. Every run tries again."
        return _error(Missing("not_indexed", text, repositories=[repository]))
    near = await parts.manifests.near(version, path)
    if near and all(each.startswith(f"{path.strip('/')}/") for each in near):
        plain = [each for each in near if _PLAIN_PATH.fullmatch(each)]
        remedy = f"It has {_quoted(plain)}." if plain else "Give the path of a file."
        return _error(Missing("no_match", f"{path!r} of {repository} is a folder."), remedy=remedy)
    # A path can be a sentence, which an agent would take for ours.
    near = [each for each in near if _PLAIN_PATH.fullmatch(each)]
    remedy = f"Did you mean {_quoted(near)}?" if near else "Give the path from the root of the repository."
    text = f"The index of {repository} has no file {path!r}."
    unfinished = await unfinished_repositories(parts.database, [repository], inactive=True)
    if unfinished:
        text += " Its newest commit is not indexed yet, and may have it."
        return _error(Missing("not_indexed", text, repositories=[repository]), remedy=remedy)
    return _error(Missing("no_match", text), remedy=remedy)


def _error(absent: Missing, *, remedy: str | None = None) -> FileNotIndexed:
    error = FileNotIndexed(absent.message, remedy=remedy)
    error.details = absent.details()
    return error


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _quoted(paths: Collection[str]) -> str:
    return ", ".join(repr(each) for each in paths)
