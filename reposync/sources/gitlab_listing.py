"""GitLab's JSON of commits and their trees, and the proof that a tree is complete and correct."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from reposync.errors import SourceCorrupt, SourceError
from reposync.sources.objects import COMMIT, MAX_TREE_ENTRIES, TREE_MODE, hash_name, object_sha, tree_sha
from reposync.sources.port import Commit, MergedRequest, TreeEntry, first_line, path_text

MAX_DESCRIPTION_CHARS = 20_000
_HEX = frozenset("0123456789abcdef")


@dataclass(slots=True)
class Listing:
    """The rows of one commit's tree, folders included; and the proof that they are complete and correct.

    Git's paths are bytes, JSON's are text. GitLab converts bytes that are not UTF-8 (`EncodingHelper#encode!` guesses
    an encoding, or drops the offending bytes) without a mark: `caf\\xe9.py` may become `café.py` or `caf.py`, and two
    paths may become one. So a listing is accepted if it can be proven: each folder's rows must hash to the id that the
    listing itself gives for the folder, and the root's to the tree inside the commit, which is rebuilt from the
    commit's JSON and must hash to the commit's sha. That also proves that no row is missing.

    Otherwise git is used. If git is refused, there are two cases. Folders whose rows do not hash to their ids are a
    contradiction: the listing is wrong for any commit. Folders that do, below a root that the commit does not confirm,
    prove nothing: the commit may have a signature or unusual headers, which its JSON does not show, or rows of the root
    may be missing.
    """

    entries: dict[bytes, TreeEntry] = field(default_factory=dict)
    folders: dict[bytes, str] = field(default_factory=dict)
    rows: int = 0
    contradiction: str | None = None
    """The first one found: a clause of a message."""

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add the rows of a page. Raises SourceCorrupt if a row cannot be read, SourceError if there are too many."""
        for row in rows:
            path, mode, sha = _checked(row)
            self.rows += 1
            if not path:  # no byte of the name was UTF-8
                self._contradicted("a row has no name")
            elif path in self.entries or path in self.folders:
                self._contradicted(f"{path_text(path)} is listed twice")
            elif mode == TREE_MODE:
                self.folders[path] = sha
            else:
                self.entries[path] = TreeEntry(path, mode, sha)
            if self.rows > MAX_TREE_ENTRIES:
                raise SourceError(f"GitLab lists more than {MAX_TREE_ENTRIES:,} files and folders.")

    def at_root(self) -> set[tuple[bytes, str]]:
        """(name, sha) of what is not in a folder."""
        files = {(path, entry.sha) for path, entry in self.entries.items() if b"/" not in path}
        return files | {(path, sha) for path, sha in self.folders.items() if b"/" not in path}

    def proves(self, sha: str, commit: Mapping[str, Any] | None) -> bool:
        """Whether these are exactly the entries of the commit `sha`; `commit` is GitLab's JSON for it. If not,
        `contradiction` says what cannot be true for any commit, if there is such a thing."""
        if self.contradiction is not None:
            return False
        name = hash_name(sha)
        children: dict[bytes, list[tuple[bytes, int, str]]] = {path: [] for path in self.folders}
        children[b""] = []
        below = [(entry.path, entry.mode, entry.sha) for entry in self.entries.values()]
        below += [(path, TREE_MODE, sha) for path, sha in self.folders.items()]
        for path, mode, oid in below:
            folder, _, leaf = path.rpartition(b"/")
            if folder not in children:
                self._contradicted(f"{path_text(path)} is in a folder that is not listed")
                return False
            children[folder].append((leaf, mode, oid))
        root = tree_sha(children.pop(b""), name)
        for path, oid in self.folders.items():
            if tree_sha(children[path], name) != oid:
                self._contradicted(f"what it lists in {path_text(path)}/ does not hash to that folder's id")
                return False
        return commit is not None and _rebuilds(commit, root, name)

    def _contradicted(self, clause: str) -> None:
        self.contradiction = self.contradiction or clause


def _checked(row: Mapping[str, Any]) -> tuple[bytes, int, str]:
    try:
        path, mode, sha = row["path"], int(row["mode"], 8), row["id"]
        if not is_object_name(sha):
            raise ValueError("no object name")
        # Half of a surrogate pair is possible in JSON, but not in UTF-8: no folder's hash will confirm these bytes.
        return path.encode("utf-8", "surrogatepass"), mode, sha
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SourceCorrupt("GitLab's listing of the tree holds a row that cannot be read.") from error


def _rebuilds(commit: Mapping[str, Any], root: str, name: str) -> bool:
    """Whether the commit, rebuilt with `root` as its tree, has the right sha."""
    try:
        head = [f"tree {root}"]
        head += [f"parent {sha}" for sha in commit["parent_ids"]]
        head.append(f"author {_person(commit, 'author_name', 'author_email', 'authored_date')}")
        head.append(f"committer {_person(commit, 'committer_name', 'committer_email', 'committed_date')}")
        text, sha = "\n".join(head), str(commit["id"])
        message = str(commit["message"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return False
    # Some versions return the message without its last line end.
    return any(
        object_sha(COMMIT, f"{text}\n\n{body}".encode("utf-8", "surrogatepass"), name) == sha
        for body in (message, f"{message}\n")
    )


def _person(commit: Mapping[str, Any], name: str, email: str, date: str) -> str:
    when = datetime.fromisoformat(commit[date])
    return f"{commit[name]} <{commit[email]}> {int(when.timestamp())} {when:%z}"


def commit_of(found: Mapping[str, Any]) -> Commit:
    """From GitLab's JSON. Raises SourceCorrupt."""
    try:
        sha, when = found["id"], datetime.fromisoformat(found["committed_date"])
        if not is_object_name(sha):
            raise ValueError("no object name")
        title, author = first_line(found.get("title")), first_line(found.get("author_name"))
        return Commit(sha, when.replace(tzinfo=when.tzinfo or UTC).astimezone(UTC), title, author)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise SourceCorrupt("GitLab's answer about the head is no commit: its `id` or date is invalid.") from error


def merged_request(row: Any) -> MergedRequest | None:
    """From GitLab's JSON. None if no single commit brought all of its changes, as after a fast-forward merge."""
    if not isinstance(row, Mapping):
        return None
    commit = row.get("merge_commit_sha") or row.get("squash_commit_sha")
    author, number, description = row.get("author"), row.get("iid"), row.get("description")
    if not is_object_name(commit) or not isinstance(number, int) or row.get("state") != "merged":
        return None
    name = author.get("username") if isinstance(author, Mapping) else ""
    text = description[:MAX_DESCRIPTION_CHARS] if isinstance(description, str) else ""
    return MergedRequest(number, first_line(row.get("title")), text, first_line(name), str(commit))


def is_object_name(text: object) -> bool:
    return isinstance(text, str) and len(text) in (40, 64) and _HEX.issuperset(text)
