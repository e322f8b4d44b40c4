"""Projects whose branches keep moving: edits, new files, renames, deletions, now and then many files at once."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from pathlib import Path

from tests.fixtures.repositories import GitRepository

FIRST_FILES = 12
FEWEST_FILES = 6
MOST_FILES = 120
WORDS = ("account ledger invoice token session cache queue worker parser render commit branch merge retry").split()  # noqa: SIM905


class Project:
    """One bare repository and what its branch holds."""

    def __init__(self, name: str, folder: Path, seed: int) -> None:
        self.name = name
        self.repository = GitRepository.create(folder / f"{name}.git")
        self.files: dict[str, bytes] = {}
        self.commits = 0
        self.head = ""
        self._random = random.Random(f"{seed}:{name}")
        self._made = 0
        self._turn = threading.Lock()
        self._commit({self._new_path(): self._content() for _ in range(FIRST_FILES)})

    def change(self) -> None:
        """One commit. Never so many deletions that a sync would ask a person first."""
        with self._turn:
            self._change()

    def _change(self) -> None:
        choice = self._random.random()
        if choice < 0.45:
            changes: dict[str, bytes | None] = {path: self._content() for path in self._some(3)}
        elif choice < 0.65:
            changes = {self._new_path(): self._content() for _ in range(self._random.randint(1, 4))}
        elif choice < 0.8:
            changes = {}
            for path in self._some(2):
                changes |= {self._new_path(): self.files[path], path: None}
        elif choice < 0.95:
            changes = dict.fromkeys(self._some(3), None) if len(self.files) > FEWEST_FILES + 3 else {}
        else:
            changes = {self._new_path(): self._content() for _ in range(40)} if len(self.files) < MOST_FILES else {}
        self._commit(changes or {self._new_path(): self._content()})

    def change_many(self, files: int) -> None:
        """One commit that edits everything and adds files, so that so many are changed."""
        with self._turn:
            paths = [*self.files, *(self._new_path() for _ in range(files - len(self.files)))]
            self._commit({path: self._content() for path in paths})

    def blobs(self) -> dict[str, str]:
        """Path -> blob sha at the head, by git."""
        return {row.path.decode(): row.sha for row in self.repository.ls_tree("main")}

    def _commit(self, changes: Mapping[str, bytes | None]) -> None:
        self.head = self.repository.commit(changes)
        for path, content in changes.items():
            if content is None:
                del self.files[path]
            else:
                self.files[path] = content
        self.commits += 1

    def _some(self, most: int) -> list[str]:
        return self._random.sample(sorted(self.files), self._random.randint(1, most))

    def _new_path(self) -> str:
        self._made += 1
        return f"{self._random.choice(WORDS)}/{self._random.choice(WORDS)}_{self._made}.py"

    def _content(self) -> bytes:
        lines = []
        for number in range(self._random.randint(1, 12)):
            name = "_".join(self._random.choices(WORDS, k=3))
            lines.append(f"def {name}_{number}({self._random.choice(WORDS)}):")
            lines += [
                f'    """{" ".join(self._random.choices(WORDS, k=8))}."""',
                f"    return {self._random.random()}\n\n",
            ]
        return "\n".join(lines).encode()
