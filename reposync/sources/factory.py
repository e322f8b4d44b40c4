"""The one place that turns the description of a repository into a source."""

from __future__ import annotations

from typing import assert_never

from reposync.sources.port import Source
from reposync.sources.spec import GitLabProject, LocalGit, RemoteGit, SourceObserver, SourceSpec


def open_source(spec: SourceSpec, *, observer: SourceObserver | None = None) -> Source:
    """The source that `spec` describes; nothing is contacted or read yet. Close it after use.

    Raises ConfigError where an address, token or CA file cannot be right.
    """
    # Imported where they are needed: python-gitlab and httpx cost 0.15 s each, a local sync needs neither.
    match spec:
        case LocalGit():
            from reposync.sources.git import GitSource

            return GitSource.local(spec.path, spec.branch)
        case RemoteGit():
            from reposync.sources.git import GitSource

            return GitSource.remote(
                spec.url,
                branch=spec.branch,
                username=spec.username,
                password=spec.password,
                known_commit=spec.known_commit,
                ca_file=spec.ca_file,
                timeouts=spec.timeouts,
                observer=observer,
            )
        case GitLabProject():
            from reposync.sources.gitlab import GitLabSource

            return GitLabSource(
                spec.url,
                spec.project,
                token=spec.token,
                branch=spec.branch,
                project_id=spec.project_id,
                ca_file=spec.ca_file,
                connect_timeout_seconds=spec.timeouts.connect_seconds,
                read_timeout_seconds=spec.timeouts.read_seconds,
                observer=observer,
            )
        case _:
            assert_never(spec)
