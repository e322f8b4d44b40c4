"""Sources that are plain git: a repository on this machine, or one behind an http(s) URL."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import SecretStr

from reposync.sources.local import LocalGitSource
from reposync.sources.spec import Patience, SourceObserver, Timeouts

if TYPE_CHECKING:
    from reposync.sources.remote import RemoteGitSource


class GitSource:
    """How to open the two kinds of git sources."""

    @staticmethod
    def local(path: str | PathLike[str], branch: str | None = None) -> LocalGitSource:
        """The repository at `path`: a working copy, a linked worktree (`.git` file) or a bare repository. Only what
        is committed on `branch` (on HEAD where none is named, detached or not) counts. Whether it is a repository is
        found out by the first call."""
        return LocalGitSource(Path(path), branch)

    @staticmethod
    def remote(
        url: str,
        *,
        branch: str | None = None,
        username: str | None = None,
        password: SecretStr | None = None,
        known_commit: str | None = None,
        ca_file: Path | None = None,
        timeouts: Timeouts | None = None,
        patience: Patience | None = None,
        observer: SourceObserver | None = None,
    ) -> RemoteGitSource:
        """The repository at an http(s) `url`. Raises ConfigError for any other address."""
        from reposync.sources.remote import RemoteGitSource

        return RemoteGitSource(
            url,
            branch=branch,
            username=username,
            password=password,
            known_commit=known_commit,
            ca_file=ca_file,
            timeouts=timeouts or Timeouts(),
            patience=patience or Patience(),
            observer=observer,
        )
