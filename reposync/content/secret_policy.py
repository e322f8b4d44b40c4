"""What is done about secrets in code: the registry's `secrets` of one repository."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from importlib.metadata import version
from typing import Final

from reposync.wildmatch import PathPatterns

RULES_REVISION: Final = 1
"""Raise it if our own rules, or the masks, change: every indexed text is scanned again."""

SCANNER: Final = "kingfisher-secret-scanner"


class SecretAction(StrEnum):
    """`mask`: its characters are replaced. `skip`: its file is left out. `warn`: it is only reported. `off`."""

    MASK = "mask"
    SKIP = "skip"
    WARN = "warn"
    OFF = "off"


def rules_version() -> str:
    """The version of all rules: the version of the scanner, whose rules belong to it, and that of our own."""
    return f"{version(SCANNER)}-{RULES_REVISION}"


@dataclass(frozen=True)
class SecretPolicy:
    """`action`: for secrets whose kind is known. `generic`: for values that are secrets by their name and look only.
    `allow`: gitignore patterns of files that are not scanned. `allow_values`: hex SHA-256 of values that are no
    secrets. `key`: of the fingerprints."""

    action: SecretAction = SecretAction.MASK
    generic: SecretAction = SecretAction.WARN
    allow: Sequence[str] = ()
    allow_values: Sequence[str] = ()
    key: bytes = b""

    def allows(self, path: bytes) -> bool:
        """Whether the file at `path` (a raw git path) is not scanned."""
        return self.is_off or (bool(self.allow) and self._allowed.match(path.decode("latin-1")) is not None)

    @property
    def is_off(self) -> bool:
        return self.action is SecretAction.OFF and self.generic is SecretAction.OFF

    @property
    def skips(self) -> bool:
        """Whether a secret keeps its file out."""
        return SecretAction.SKIP in (self.action, self.generic)

    def rules_of(self, path: bytes) -> str:
        """What the manifest knows of a file that was scanned: a digest of the rules and of what is done; empty if the
        file is not scanned."""
        return "" if self.allows(path) else self._digest

    @cached_property
    def fingerprint(self) -> str:
        """Changes if `rules_of` of any path may change: the version of the rules, a space, and a digest."""
        parts = [self._digest, sorted(self.allow)] if not self.is_off else ["off"]
        digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
        return f"none {digest}" if self.is_off else f"{rules_version()} {digest}"

    @cached_property
    def _digest(self) -> str:
        parts = [rules_version(), self.action, self.generic, sorted(self.allow_values)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]

    @cached_property
    def _allowed(self) -> PathPatterns:
        return PathPatterns([pattern.encode().decode("latin-1") for pattern in self.allow])


OFF: Final = SecretPolicy(SecretAction.OFF, SecretAction.OFF)
