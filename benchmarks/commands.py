"""How long a person waits: `--help`, a sync with nothing to do or of one changed file, a search; each in a new process.

    python -m benchmarks.commands [--files 10000]

"after imports" is the time of the command itself in a process that has already imported what it uses. The embedding is
`none` for the sync (the issue is the rest); the embedded engine serves the index, and runs already but for the first.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.corpus import make_corpus
from benchmarks.first_sync import change
from benchmarks.measure import machine

MODULES = """
    cli.main cli.sync cli.search cli.output app.application vectors.index embedding.factory
    sources.local content.documents content.chunking search.snippets embedding.sparse
"""
IMPORTED = f"""
import importlib, sys, time
for name in {[*(f"reposync.{name}" for name in MODULES.split()), "langchain_text_splitters", "rich.console"]!r}:
    importlib.import_module(name)
main = importlib.import_module("reposync.cli.main").cli
started = time.perf_counter()
main.main(sys.argv[1:], standalone_mode=False)
print(time.perf_counter() - started, file=sys.stderr)
"""


def corpus_environment(folder: Path, files: int) -> dict[str, str]:
    """Variables of commands on a corpus in `folder`, which is searched by words only."""
    make_corpus(folder / "corpus.git", files, files * 0.0053)
    (folder / "repositories.yaml").write_text(
        f'embedding: {{provider: none}}\nrepositories:\n  - {{name: corpus, path: "{folder}/corpus.git"}}\n'
    )
    return {
        **os.environ,
        "REPOSYNC_STATE_DIR": str(folder / "state"),
        "REPOSYNC_CONFIG": str(folder / "repositories.yaml"),
        "REPOSYNC_ENGINE_IDLE_SECONDS": "30",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = corpus_environment(folder, options.files)
        print(f"{machine()}; {options.files:,} files\n")
        show("--help", [whole(["--help"], environment) for _ in range(5)])
        whole(["apply"], environment)
        whole(["sync"], environment)
        show("no change, whole command", [whole(["sync"], environment) for _ in range(5)])
        show("no change, after imports", [after_imports(["sync"], environment) for _ in range(5)])
        edited = []
        for _ in range(3):
            change(folder / "corpus.git", rename=0, delete=0, edit=1)
            edited.append(after_imports(["sync"], environment))
        show("one file, after imports", edited)
        show("search, after imports", [after_imports(["search", "parse a date"], environment) for _ in range(5)])
        show("history, whole command", [whole(["history"], environment) for _ in range(5)])


def whole(words: list[str], environment: dict[str, str]) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "reposync", *words], env=environment, check=True, capture_output=True)
    return time.perf_counter() - started


def after_imports(words: list[str], environment: dict[str, str]) -> float:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *words], env=environment, check=True, capture_output=True, text=True
    )
    return float(done.stderr.split()[-1])


def show(what: str, seconds: list[float]) -> None:
    print(f"{what:<26} median {statistics.median(seconds):.2f} s, slowest {max(seconds):.2f} s", flush=True)


if __name__ == "__main__":
    main()
