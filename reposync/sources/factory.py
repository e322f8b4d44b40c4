"""From the description of a repository to its source."""

from __future__ import annotations

from typing import assert_never

from reposync.outgoing import RequestObserver
from reposync.sources.port import GitLabProject, LocalGit, RemoteGit, Source, SourceSpec


def open_source(spec: SourceSpec, *, observer: RequestObserver | None = None) -> Source:
    """The source that `spec` describes; nothing is contacted or read yet. Close it after use. The observer sees the
    request kinds `api_project`, `api_head`, `api_branches`, `api_tree`, `api_blob`, `git_refs` and `git_fetch`.

    Raises ConfigError if a CA file or the proxy cannot be used.
    """
    # Imported when needed: python-gitlab and httpx cost 0.15 s each, a local sync needs neither.
    match spec:
        case LocalGit():
            from reposync.sources.local import LocalGitSource

            return LocalGitSource(spec)
        case RemoteGit():
            from reposync.sources.remote import RemoteGitSource

            return RemoteGitSource(spec, observer=observer)
        case GitLabProject():
            from reposync.sources.gitlab import GitLabSource

            return GitLabSource(spec, observer=observer)
        case _:
            assert_never(spec)
