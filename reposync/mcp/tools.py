"""The tools. Each answers with a text and with the same as a structure. Which of them a model reads is the choice of
its program: Gemini CLI 0.61 passes the text on, Claude Code 2.1 and Codex 0.169 the structure.

Names, paths and contents are written by whoever may push to a repository. In texts they are between two lines with a
boundary that is drawn for each answer, and no line of a file begins like one of ours; control characters are visible
everywhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from reposync.errors import UsageError
from reposync.mcp.calls import Caller, Outcome
from reposync.mcp.code import grep_code, read_code, search_code
from reposync.mcp.repositories import list_repositories, wait_for_commit
from reposync.mcp.schemas import (
    FOUND,
    MATCHES,
    READ,
    REPOSITORIES,
    WAITED,
    Arguments,
    GrepCode,
    ListRepositories,
    ReadCode,
    SearchCode,
    WaitForCommit,
    read_arguments,
)
from reposync.words import escape_unprintable


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    arguments: type[Arguments]
    result: Mapping[str, Any]
    act: Callable[[Caller, Any], Awaitable[Outcome]]

    async def call(self, caller: Caller, given: Mapping[str, Any]) -> Outcome:
        """Raises UsageError for invalid arguments, and RepoSyncError."""
        return await self.act(caller, read_arguments(self.arguments, dict(given)))


TOOLS: Final[Sequence[Tool]] = (
    Tool(
        "search_code",
        "Finds code in all indexed repositories by what it does or by identifiers. Answers with excerpts, grouped by "
        "file and best first, within max_tokens. `further` only names files.",
        SearchCode,
        FOUND,
        search_code,
    ),
    Tool(
        "grep_code",
        "Exact and regular-expression search over all indexed files. `stopped` says why there may be more.",
        GrepCode,
        MATCHES,
        grep_code,
    ),
    Tool(
        "read_code",
        "The indexed text of a file, or lines of it.",
        ReadCode,
        READ,
        read_code,
    ),
    Tool(
        "list_repositories",
        "The indexed repositories: commit and age of each index, next sync, problems.",
        ListRepositories,
        REPOSITORIES,
        list_repositories,
    ),
    Tool(
        "wait_for_commit",
        "Waits until the index holds a pushed commit or a descendant of it. It starts no sync.",
        WaitForCommit,
        WAITED,
        wait_for_commit,
    ),
)


def tool_named(name: str) -> Tool:
    """Raises UsageError."""
    found = next((each for each in TOOLS if each.name == name), None)
    if found is None:
        raise UsageError(f"There is no tool {escape_unprintable(name[:100])!r}.")
    return found
