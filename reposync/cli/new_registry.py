"""The two files that `reposync init` writes: a registry file, and the variables that it refers to."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from reposync.errors import ConfigError

ENVIRONMENT_NAME = "reposync.env"
SERVER = "main"
_HEADER = "# Every key: docs/reference.md, or `reposync config schema`.\n"
_ENVIRONMENT_HEADER = """\
# For a shell: set -a; . {path}; set +a
# For systemd: EnvironmentFile={path}
"""


@dataclass
class NewRegistry:
    """`path`: of the registry file. `secret`: the variable with the token, or with the path of its file, and its value.
    `projects`, `groups`: their paths in GitLab."""

    path: Path
    url: str
    variable: str
    secret: tuple[str, str] | None
    projects: Sequence[str] = ()
    groups: Sequence[str] = ()

    @property
    def environment_path(self) -> Path:
        return self.path.with_name(ENVIRONMENT_NAME)

    @property
    def names(self) -> list[str]:
        """The names of the repositories: the last part of each path, unless two projects have it in common."""
        last = [path.rpartition("/")[2] for path in self.projects]
        return [name if last.count(name) == 1 else path for name, path in zip(last, self.projects, strict=True)]

    def document(self) -> dict[str, Any]:
        server = {"name": SERVER, "url": self.url}
        if self.secret is not None:
            server["token"] = f"${{{self.variable}}}"
        entries = zip(self.names, self.projects, strict=True)
        repositories = [{"name": name, "gitlab": SERVER, "project": project} for name, project in entries]
        groups = [{"gitlab": SERVER, "group": group} for group in self.groups]
        return {"gitlab": [server]} | {
            key: rows for key, rows in (("repositories", repositories), ("groups", groups)) if rows
        }

    def registry_text(self) -> str:
        from ruamel.yaml import YAML

        out, yaml = StringIO(), YAML()
        yaml.indent(mapping=2, sequence=4, offset=2)
        yaml.dump(self.document(), out)
        return _HEADER + out.getvalue()

    def environment_text(self) -> str:
        lines = [f"REPOSYNC_CONFIG={_quoted(str(self.path))}"]
        if self.secret is not None:
            lines.append(f"{self.secret[0]}={_quoted(self.secret[1])}")
        return _ENVIRONMENT_HEADER.format(path=shlex.quote(str(self.environment_path))) + "\n".join(lines) + "\n"

    def write(self) -> None:
        """Both files, for their owner only, each whole or not at all. Raises ConfigError."""
        texts = {self.environment_path: self.environment_text(), self.path: self.registry_text()}
        with contextlib.ExitStack() as cleanup:
            try:
                written = [(cleanup.enter_context(_written(path, text)), path) for path, text in texts.items()]
                for temporary, path in written:
                    temporary.replace(path)
            except OSError as error:
                raise ConfigError(f"{error.filename or self.path} cannot be written: {error.strerror}.") from error


@contextlib.contextmanager
def _written(path: Path, text: str) -> Iterator[Path]:
    """A file beside `path` with the text, which is gone at the end unless it was moved."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - of a descriptor
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _quoted(value: str) -> str:
    """As a shell, systemd and Docker read it. Tokens of GitLab need no quotes, which Docker would keep."""
    return value if re.fullmatch(r"[\w./@:+,=-]+", value) else shlex.quote(value)


def is_in_git(path: Path) -> bool:
    """Whether the file at `path` may be committed by mistake."""
    return any((folder / ".git").exists() for folder in path.parents)
