"""What is wrong with a registry file, or with a file that it names, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reposync.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a file; line and column count from 1, columns in characters."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding in a file, an error or a warning. No value of a secret or of a variable is in the message."""

    file: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.message}"


class RegistryErrors(ConfigError):
    """All that is wrong with a registry file, or with a file that it names, in the order of the file; nothing was
    started."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        ordered = sorted(set(problems), key=lambda problem: (problem.line, problem.column, problem.message))
        super().__init__("\n".join(map(str, ordered)))
        self.problems = tuple(ordered)
