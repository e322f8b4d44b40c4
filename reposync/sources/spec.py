"""What `open_source` needs to know about a repository, and how to watch what a source does."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pydantic import SecretStr

from reposync.outgoing import IN_PLACE_SECONDS


class SourceObserver(Protocol):
    """Told on the event loop what a source does, for metrics. Must return at once and raise nothing."""

    def request(self, kind: str) -> None:
        """A request went out, redirects and repeats included: `api_project`, `api_head`, `api_branches`, `api_tree`,
        `api_blob`, `git_refs`, `git_fetch`."""
        ...

    def rate_limited(self, seconds: float) -> None:
        """The server asked for patience; the source now waits this long."""
        ...


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Of every outgoing call: to connect, and between two pieces of an answer."""

    connect_seconds: float = 10.0
    read_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How often a failed call is repeated and how long it may wait for that in total. A wait that the server asks for
    and that is longer than what is left ends the call."""

    attempts: int = 4
    first_delay_seconds: float = 0.5
    max_delay_seconds: float = 8.0
    max_wait_seconds: float = IN_PLACE_SECONDS


@dataclass(frozen=True, slots=True)
class LocalGit:
    """A repository on this machine: a working copy (committed content only), a linked worktree or a bare repository."""

    path: Path
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class RemoteGit:
    """A repository behind an http(s) URL of git. User and password written into the URL are taken out of it.

    `known_commit`, the commit of the last sync, saves a server without filters from sending everything to a caller
    that only asks whether the head has changed; `head` then gives it back without its date.
    """

    url: str
    branch: str | None = None
    username: str | None = None
    password: SecretStr | None = None
    known_commit: str | None = None
    ca_file: Path | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)


@dataclass(frozen=True, slots=True)
class GitLabProject:
    """A project of a GitLab instance. `project` is its full path (`group/sub/project`) or its numeric id;
    `project_id`, where known from an earlier run, saves the call that resolves the path."""

    url: str
    project: str
    project_id: int | None = None
    branch: str | None = None
    token: SecretStr | None = None
    ca_file: Path | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)


SourceSpec = LocalGit | RemoteGit | GitLabProject
