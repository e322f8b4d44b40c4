"""Descriptions of repositories."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pydantic import SecretStr

from reposync.outgoing import RetryPolicy, Timeouts
from reposync.sources.port import Commit


@dataclass(frozen=True, slots=True)
class LocalGit:
    """A repository on this machine: a working copy (committed content only), a linked worktree or a bare repository."""

    path: Path
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class RemoteGit:
    """A repository behind an http(s) URL of git. User and password in the URL are taken out of it.

    `known_commit` is the commit of the last sync. If the head is still that commit, `head` returns it and fetches
    nothing.
    """

    url: str
    branch: str | None = None
    username: str | None = None
    password: SecretStr | None = None
    known_commit: Commit | None = None
    ca_file: Path | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)
    retry: RetryPolicy = field(default_factory=RetryPolicy)


@dataclass(frozen=True, slots=True)
class GitLabProject:
    """A project of a GitLab instance. `project` is its full path (`group/sub/project`) or its numeric id;
    `project_id`, if known from an earlier run, saves the call that resolves the path."""

    url: str
    project: str
    project_id: int | None = None
    branch: str | None = None
    token: SecretStr | None = None
    ca_file: Path | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)
    retry: RetryPolicy = field(default_factory=RetryPolicy)


SourceSpec = LocalGit | RemoteGit | GitLabProject
