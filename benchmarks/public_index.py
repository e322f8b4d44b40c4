"""Repositories of a public benchmark at their pinned commits, indexed by the product's own command.

Only code is indexed unless all files are wanted: semble leaves out documents and data (Markdown, JSON, YAML, HTML ...)
by their suffix and indexes the code of every language, and octocode's questions are for its index of code. So the
registry includes files by suffix (`CODE`). The skip rules and everything else are the product's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import Usage, measure
from benchmarks.public_questions import Repository

CODE = (
    "bash", "bzl", "c", "cc", "cjs", "cmake", "cpp", "cs", "css", "cts", "cxx", "erb", "ex", "exs", "fish", "go",
    "h", "heex", "hpp", "hs", "hxx", "inc", "java", "js", "jsx", "kt", "kts", "lua", "mjs", "mts", "php", "pl",
    "pm", "py", "pyi", "rb", "rs", "scala", "scm", "scss", "sh", "sql", "swift", "ts", "tsx", "vim", "vue", "zig",
    "zsh",
)  # fmt: skip
"""The suffixes that semble takes for code, those of them that are in its repositories or likely to be."""

BRANCH = "benchmark"


class Missing(Exception):
    """Why a repository is left out."""


class State:
    """What is kept between runs: a bare repository for each one measured, which borrows the objects of the given one;
    the registry file; and the product's state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registry = folder / "repositories.yaml"

    @property
    def environment(self) -> dict[str, str]:
        """Of the product's commands. An empty variable is unset: SQLite and the embedded engine are used."""
        servers = ("DATABASE_URL", "REDIS_URL", "QDRANT_URL", "QDRANT_API_KEY")
        unset = dict.fromkeys((*servers, *(f"REPOSYNC_{name}" for name in servers)), "")
        return {"REPOSYNC_CONFIG": str(self.registry), "REPOSYNC_STATE_DIR": str(self.folder / "state"), **unset}

    def pin(self, repository: Repository, repositories: Path, *, newest: bool) -> str:
        """Make its branch `benchmark` the pinned commit, or with `newest` the HEAD of a repository that lacks it.
        Returns the commit. Raises Missing."""
        given, mine = repositories / repository.folder, self.bare(repository)
        if not given.is_dir():
            raise Missing(f"no folder {repository.folder}")
        try:
            objects = git(given, "rev-parse", "--path-format=absolute", "--git-path", "objects")
            git(self.folder, "init", "--quiet", "--bare", str(mine))
            (mine / "objects" / "info" / "alternates").write_text(f"{objects}\n")
            try:
                commit = git(mine, "rev-parse", "--verify", "--quiet", f"{repository.revision}^{{commit}}")
            except subprocess.CalledProcessError:
                if not newest:
                    raise Missing(f"{repository.folder} has no commit {repository.revision[:12]}") from None
                commit = git(given, "rev-parse", "HEAD^{commit}")
            git(mine, "update-ref", f"refs/heads/{BRANCH}", commit)
        except subprocess.CalledProcessError as error:
            raise Missing(f"{repository.folder}: {error.stderr.strip().splitlines()[-1]}") from None
        return commit

    def bare(self, repository: Repository) -> Path:
        return self.folder / "repositories" / f"{repository.name}.git"

    def register(self, repositories: Iterable[Repository], provider: str, *, all_files: bool) -> None:
        """Write and apply the registry file: all of them, for the index of one that is not registered any more is
        removed. JSON is YAML."""
        document = {
            "embedding": {"provider": provider},
            "defaults": {"schedule": "never"},
            "repositories": [
                {
                    "name": each.name,
                    "path": str(self.bare(each)),
                    "branch": BRANCH,
                    "include": _included(each, all_files=all_files),
                }
                for each in repositories
            ],
        }
        self.registry.write_text(json.dumps(document, indent=1))
        self._run("apply")

    def sync(self, names: Sequence[str]) -> Usage:
        """Index what has changed."""
        return self._run("sync", "--json", *names)

    def evaluate(self, name: str, last: int) -> dict[str, Any]:
        """What `eval --from-history --replay` says about the last questions of its history."""
        command = ("eval", "--from-history", name, "--replay", "--last", str(last), "--json")
        return dict(json.loads(self._run(*command).stdout))

    def _run(self, *arguments: str) -> Usage:
        usage = measure([sys.executable, "-m", "reposync", *arguments], self.environment)
        if usage.returncode:
            raise SystemExit(f"reposync {arguments[0]} ended with {usage.returncode}: {usage.stdout[-2000:]}")
        return usage


def _included(repository: Repository, *, all_files: bool) -> list[str]:
    root = f"/{repository.benchmark_root.strip('/')}" if repository.benchmark_root else ""
    return [f"{root}/**"] if all_files else [f"{root}/**/*.{suffix}" for suffix in CODE]


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
