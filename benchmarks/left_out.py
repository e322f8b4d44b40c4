"""What the defaults leave out of real repositories, and why: counts, bytes and a sample of paths for each reason.

Chunks are those of 7000/1500 characters. For a file that is data it prints the chunks that it would have made, for a
notebook the chunks of its whole JSON beside those of its cells. Paths are drawn at random, the same at every run.

python -m benchmarks.left_out REPOSITORY... [--sample 5] [--markdown]

A REPOSITORY is a local git repository, bare or not; its HEAD is read through the git program.
"""

from __future__ import annotations

import argparse
import random
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from reposync.content.chunking import chunk_text
from reposync.content.decoding import decode
from reposync.content.documents import make_document
from reposync.content.model import Document, Skip
from reposync.content.rules import PathRules

MAX_FILE_BYTES = 1_000_000


@dataclass(frozen=True)
class Entry:
    path: bytes
    mode: int
    sha: bytes
    size_bytes: int
    absent: bool  # from this copy of the repository, which may have been made without its largest files


@dataclass
class Tally:
    files: int = 0
    indexed: int = 0
    chunks: int = 0
    data_chunks: int = 0
    notebooks: int = 0
    notebook_chunks: int = 0
    notebook_chunks_whole: int = 0
    paths: dict[Skip, list[str]] = field(default_factory=lambda: defaultdict(list))
    size_bytes: Counter[Skip] = field(default_factory=Counter)

    def skip(self, entry: Entry, reason: Skip, detail: str) -> None:
        self.paths[reason].append(f"{entry.path.decode('utf-8', 'replace')}  ({detail})")
        self.size_bytes[reason] += entry.size_bytes


class Repository:
    """The files of HEAD of a local git repository."""

    def __init__(self, folder: Path) -> None:
        git_folder = folder / ".git"
        self._git = ["git", "--git-dir", str(git_folder if git_folder.is_dir() else folder)]
        self.name = folder.name if folder.name != "repo" else folder.parent.name
        self.commit = self._run("rev-parse", "--short=10", "HEAD").decode().strip()

    def _run(self, *command: str) -> bytes:
        return subprocess.run([*self._git, *command], check=True, capture_output=True).stdout

    def entries(self) -> Iterator[Entry]:
        for line in self._run("ls-tree", "-rlz", "HEAD").split(b"\0")[:-1]:
            meta, _, path = line.partition(b"\t")
            mode, _, sha, size = meta.split()
            yield Entry(path, int(mode, 8), sha, int(size) if size.isdigit() else 0, absent=size == b"BAD")

    def contents(self, entries: list[Entry]) -> Iterator[tuple[Entry, bytes]]:
        command = [*self._git, "cat-file", "--batch"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin and process.stdout
            for entry in entries:
                process.stdin.write(entry.sha + b"\n")
                process.stdin.flush()
                process.stdout.readline()
                yield entry, process.stdout.read(entry.size_bytes + 1)[:-1]
            process.stdin.close()


def tally(repository: Repository) -> Tally:
    rules = PathRules((), ())
    counts = Tally()
    wanted: list[Entry] = []
    for entry in repository.entries():
        counts.files += 1
        if skipped := rules.decide(entry.path, entry.mode):
            counts.skip(entry, skipped.reason, skipped.detail)
        elif entry.absent or entry.size_bytes > MAX_FILE_BYTES:
            counts.skip(entry, Skip.TOO_LARGE, "absent" if entry.absent else f"{entry.size_bytes:,} bytes")
        else:
            wanted.append(entry)
    for entry, content in repository.contents(wanted):
        made = make_document(entry.path, content, entry.size_bytes, max_file_bytes=MAX_FILE_BYTES)
        chunks = len(made.chunks) if isinstance(made, Document) else 0
        if isinstance(made, Document):
            counts.indexed += 1
            counts.chunks += chunks
        else:
            counts.skip(entry, made.reason, made.detail)
            if made.reason is Skip.DATA:
                counts.data_chunks += chunks_of_text(entry.path, content)
        if entry.path.lower().endswith(b".ipynb"):
            counts.notebooks += 1
            counts.notebook_chunks += chunks
            counts.notebook_chunks_whole += chunks_of_text(entry.path, content)
    return counts


def chunks_of_text(path: bytes, content: bytes) -> int:
    text = decode(content)
    return len(chunk_text(text)) if isinstance(text, str) else 0


def show(repository: Repository, counts: Tally, sample: int) -> None:
    print(f"\n{repository.name} {repository.commit}: {counts.files:,} files, {counts.indexed:,} indexed as")
    print(f"{counts.chunks:,} chunks; data would have made {counts.data_chunks:,} more")
    if counts.notebooks:
        print(f"{counts.notebooks:,} notebooks: {counts.notebook_chunks_whole:,} chunks whole, cells", end=" ")
        print(f"{counts.notebook_chunks:,}")
    for reason in sorted(counts.paths, key=lambda each: -len(counts.paths[each])):
        paths = counts.paths[reason]
        print(f"  {reason:12} {len(paths):6,} files {counts.size_bytes[reason]:13,} bytes")
        for path in sorted(random.Random(1).sample(paths, min(sample, len(paths)))):
            print(f"      {path}")


def show_table(done: list[tuple[Repository, Tally]]) -> None:
    print("\n| repository | files | indexed | left out | data | chunks | of data | notebooks: whole, cells |")
    print("|---|---|---|---|---|---|---|---|")
    for repository, counts in done:
        count = {reason: len(paths) for reason, paths in counts.paths.items()}
        data = count.pop(Skip.DATA, 0)
        others = ", ".join(f"{count[reason]:,} {reason}" for reason in sorted(count, key=lambda each: -count[each]))
        notebooks = f"{counts.notebook_chunks_whole:,}, {counts.notebook_chunks:,}" if counts.notebooks else ""
        print(
            f"| {repository.name} {repository.commit} | {counts.files:,} | {counts.indexed:,} | {others} | {data:,}"
            f" | {counts.chunks:,} | {counts.data_chunks:,} | {notebooks} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="what the defaults leave out of local git repositories")
    parser.add_argument("repository", nargs="+", type=Path)
    parser.add_argument("--sample", type=int, default=5, metavar="PATHS", help="paths shown for each reason")
    parser.add_argument("--markdown", action="store_true", help="a table for the documentation at the end")
    options = parser.parse_args()
    done = []
    for folder in options.repository:
        repository = Repository(folder)
        counts = tally(repository)
        show(repository, counts, options.sample)
        done.append((repository, counts))
    if options.markdown:
        show_table(done)


if __name__ == "__main__":
    main()
