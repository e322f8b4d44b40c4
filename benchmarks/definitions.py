"""How exactly, and at what cost, definitions are found: by the parser of `reposync.content.symbols`, and by less.

python -m benchmarks.definitions --data DIR --repositories DIR [--sample N]
python -m benchmarks.definitions --corpus REPOSITORY [--sample N]

`--data` and `--repositories` are those of `benchmarks/retrieval_public.py`: the code of each repository at its pinned
commit, or at HEAD if it lacks that. `--corpus`: all files of the branch `main` (`benchmarks/corpus.py`). `--sample`:
that many files of them. The ways:

- `parser`: what a run does with a file, whole. The others are compared with it.
- `search`: the regular expressions that a run has for languages without a grammar, in place of the parser.
- `ast-grep`: its parser, and a search for the kinds of nodes that our queries begin with, their names and lines. No
  dependency of this project: measured if `ast-grep-py` is installed. It has the same grammars, so only its time counts.

A definition is found if it has the name and begins at most as many lines later as annotations and types take. Seconds
are CPU time of this process, file by file in turn, after all grammars are loaded.
"""

from __future__ import annotations

import argparse
import importlib
import random
import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import machine
from benchmarks.plain_loop import read_all
from benchmarks.public_index import BRANCH, CODE, Missing, State
from benchmarks.public_questions import OCTOCODE, Repository, read_repositories
from reposync.content.documents import FileText, cut, read_text
from reposync.content.grammars import _GRAMMARS, grammar_of, load
from reposync.content.model import Skipped
from reposync.content.searched_definitions import Definition, searched_definitions
from reposync.content.symbols import OverBudget, definitions

LINES_BEFORE = 5
"""Of a definition before its name, by which the search finds it: annotations, attributes, types."""
_HEAD = re.compile(r"^\((\w+)", re.MULTILINE)


def main() -> None:
    arguments = _arguments()
    if arguments.corpus is not None:
        contents: Iterator[tuple[str, bytes]] = iter(read_all(str(arguments.corpus)))
    else:
        contents = _code([*read_repositories(arguments.data), OCTOCODE], arguments.repositories)
    files = [(file, grammar) for file, grammar in map(_file, contents) if file is not None and grammar is not None]
    if arguments.sample:
        files = random.Random(1).sample(files, min(arguments.sample, len(files)))
    by_language = measure(files)
    print(machine())
    print(table(by_language))


def _file(content: tuple[str, bytes]) -> tuple[FileText | None, str | None]:
    """The text, if it would be indexed, and its grammar."""
    path, blob = content
    file = read_text(path.encode(), blob, len(blob), max_file_bytes=1_000_000)
    if isinstance(file, Skipped) or isinstance(cut(file), Skipped):
        return None, None
    return file, grammar_of(file.language, file.text)


def _code(repositories: Sequence[Repository], folder: Path) -> Iterator[tuple[str, bytes]]:
    for repository in repositories:
        root = f"{repository.benchmark_root.strip('/')}/" if repository.benchmark_root else ""

        def is_wanted(path: str, root: str = root) -> bool:
            return path.startswith(root) and path.rpartition(".")[2] in CODE

        with tempfile.TemporaryDirectory() as temporary:
            state = State(Path(temporary))
            try:
                state.pin(repository, folder, newest=True)
            except Missing as error:
                print(f"left out: {repository.name}: {error}")
                continue
            yield from read_all(str(state.bare(repository)), BRANCH, is_wanted)


def measure(files: Sequence[tuple[FileText, str]]) -> dict[str, Counter[str]]:
    """Figures by language."""
    for grammar in {grammar for _, grammar in files}:
        load(grammar)
    ast_grep = _ast_grep()
    measured: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for file, grammar in files:
        figures = measured[str(file.language)]
        with_parser = _timed(figures, "parser", lambda: _parsed(file))  # noqa: B023 - called at once
        searched = _timed(figures, "search", lambda: list(searched_definitions(file.text, grammar)))  # noqa: B023
        if ast_grep is not None:
            _timed(figures, "ast-grep", lambda: ast_grep(file.text, grammar))  # noqa: B023
        figures.update({"files": 1, "bytes": len(file.text.encode("utf-8", "replace"))})
        figures.update(_compared(with_parser, searched))
    return dict(measured)


def _timed(figures: Counter[str], way: str, find: Callable[[], list[Definition]]) -> list[Definition]:
    started = time.process_time_ns()
    found = find()
    figures[way] += time.process_time_ns() - started
    return found


def _parsed(file: FileText) -> list[Definition]:
    try:
        return definitions(file.text, file.language)
    except OverBudget:
        return []


def _ast_grep() -> Callable[[str, str], list[Definition]] | None:
    try:
        root: Any = importlib.import_module("ast_grep_py").SgRoot
    except ImportError:
        return None
    rules = {
        name: {"rule": {"any": [{"kind": kind} for kind in sorted(set(_HEAD.findall(grammar.patterns)))]}}
        for name, grammar in _GRAMMARS.items()
    }

    def find(text: str, grammar: str) -> list[Definition]:
        found = []
        for node in root(text, "bash" if grammar == "shell" else grammar).root().find_all(rules[grammar]):
            if (name := node.field("name")) is not None:
                lines = node.range()
                found.append(Definition(lines.start.index, lines.start.line, lines.end.line, name.text(), ""))
        return found

    return find


def _compared(expected: Sequence[Definition], found: Sequence[Definition]) -> Counter[str]:
    missing: defaultdict[tuple[str, int], list[Definition]] = defaultdict(list)
    for definition in expected:
        missing[definition.name, definition.first].append(definition)
    counted = Counter({"expected": len(expected), "found": len(found)})
    for definition in found:
        near = [(definition.name, definition.first - before) for before in range(LINES_BEFORE + 1)]
        if place := next((place for place in near if missing[place]), None):
            same = missing[place].pop(0)
            counted.update({"both": 1, "last": same.last == definition.last, "kind": same.kind == definition.kind})
    return counted


def table(by_language: dict[str, Counter[str]]) -> str:
    rows = sorted(by_language.items())
    total: Counter[str] = sum(by_language.values(), Counter())
    lines = [
        "| | files | MB | definitions | recall | precision | last lines | kinds | parser | search | ast-grep |",
        "|" + "---|" * 11,
    ]
    for language, figures in [*rows, ("**all**", total)]:
        shares = [
            figures[part] / figures[whole] if figures[whole] else 0.0
            for part, whole in (("both", "expected"), ("both", "found"), ("last", "both"), ("kind", "both"))
        ]
        seconds = [f"{figures[way] / 1e9:.2f} s" for way in ("parser", "search", "ast-grep")]
        counted = f"{figures['files']:,} | {figures['bytes'] / 1e6:.2f} | {figures['expected']:,}"
        lines.append(
            f"| {language} | {counted} | {' | '.join(f'{each:.3f}' for each in shares)} | {' | '.join(seconds)} |"
        )
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--repositories", type=Path)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--sample", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.corpus is None and None in (arguments.data, arguments.repositories):
        parser.error("give --corpus, or --data and --repositories")
    return arguments


if __name__ == "__main__":
    main()
