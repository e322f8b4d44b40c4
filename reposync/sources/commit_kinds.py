"""Commits whose words say nothing of what their files are for: of bots, reverts, and of formats and versions alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_BOT: Final = re.compile(
    r"\[bot\]|^(dependabot|renovate|greenkeeper|pyup|snyk|mergify|weblate|imgbot|codecov|allcontributors|pre-commit-ci"
    r"|semantic-release|github-actions|gitlab-bot|project_\d+_bot|group_\d+_bot)|[-_. ]bot(@|$)|^bot(@|$)",
    re.IGNORECASE,
)
_REVERT: Final = re.compile(r"""(?i)^(revert|reapply)\b|^this reverts commit """, re.MULTILINE)
_FORMAT: Final = re.compile(
    r"""(?ix) ^ (?: (?:chore|style|build|ci|release|docs?) (?:\([^)]*\))? !? : \s* )? (?:
        fmt | format(?:ting|ted)? | (?:re)?format\ (?:the\ )?code | lint(?:ing|er|s)? | (?:fix|run|apply)\ (?:the\ )?
        (?:fmt|format|formatting|lint|linter|linting|lints|black|isort|ruff|prettier|gofmt|rustfmt|clippy|pre-?commit|
           whitespace|style|typos?) | black | isort | ruff | prettier | gofmt | rustfmt | clippy | whitespace | typos?
        | bump(?:ed|ing|s)?\b .* | version\ bump | (?:start|begin)\ version .* | version \ v?\d .* | v?\d+\.\d+\S*
        | (?:prepare|cut|tag|make)? \ ? (?:for\ )? release (?:\ (?:version\ )?v?\d .*)? | (?:release|rc)\ v?\d .*
        | (?:update|upgrade|pin)\ (?:dependencies|deps|requirements|lock\ ?files?|(?:the\ )?changelog|pre-?commit\b.*)
    ) [.!\s]* $"""
)
_NUMBERS: Final = re.compile(r"""(?xi) \(\s* [\#!]\d+ (?:\s*,\s*[\#!]\d+)* \s*\) | (?<!\w)[\#!]\d+\b
    | \b(?:fix(?:es|ed)?|close[sd]?|resolve[sd]?|see|refs?)\s+[\#!]\d+\b""")


def is_bot(people: Iterable[str]) -> bool:
    """`people`: names and addresses of the author."""
    return any(_BOT.search(each) for each in people)


def is_revert(text: str) -> bool:
    """`text`: a subject, or a whole message."""
    return _REVERT.search(text) is not None


def is_format(title: str) -> bool:
    """Whether the commit changed formats, versions or names alone, as far as its title (`without_numbers`) says."""
    return _FORMAT.match(title) is not None


def without_numbers(title: str) -> str:
    """Without numbers of issues and merge requests."""
    return _NUMBERS.sub(" ", title)
