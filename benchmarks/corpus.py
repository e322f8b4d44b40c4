"""Real source files as a git repository: what is installed here, the standard library first, then the packages.

python -m benchmarks.corpus FOLDER [FILES] [MEGABYTES]
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

SUFFIXES = {".py", ".pyi", ".c", ".h", ".js", ".ts", ".pyx", ".rs", ".md", ".rst"}


def source_files() -> Iterator[Path]:
    """Source files of the standard library and of the installed packages, in a fixed order."""
    paths = sysconfig.get_paths()
    library, packages = Path(paths["stdlib"]), Path(paths["purelib"])
    for path in sorted(library.rglob("*")):
        if path.suffix in SUFFIXES and packages.name not in path.parts and path.is_file():
            yield path
    for path in sorted(packages.rglob("*")):
        if path.suffix in SUFFIXES and path.is_file() and not path.is_symlink():
            yield path


def make_corpus(folder: Path, files: int = 10_000, megabytes: float = 53.0) -> tuple[int, int]:
    """A bare repository at `folder` with one commit of `files` distinct files of about `megabytes` in all.

    Where not enough are installed, more are made by renaming identifiers of real ones, so that their content and
    their words are new. Returns the number of files and bytes.
    """
    subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", str(folder)], check=True)
    process = subprocess.Popen(["git", "-C", str(folder), "fast-import", "--quiet", "--done"], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(
        b"feature done\ncommit refs/heads/main\ncommitter Bench <bench@example.com> 1700000000 +0000\ndata 5\nbench\n"
    )
    written = size = 0
    for name, content in _contents(files, int(megabytes * 1_000_000)):
        process.stdin.write(b"M 100644 inline %s\ndata %d\n" % (name.encode(), len(content)) + content + b"\n")
        written, size = written + 1, size + len(content)
    process.stdin.write(b"done\n")
    process.stdin.close()
    if process.wait():
        raise SystemExit("git fast-import failed")
    subprocess.run(["git", "-C", str(folder), "repack", "-adq"], check=True)
    return written, size


def _contents(files: int, total_bytes: int) -> Iterator[tuple[str, bytes]]:
    """Distinct contents. A file far over the mean left for the rest is passed over, so that number and size fit."""
    seen: set[bytes] = set()
    count = size = generation = 0
    while count < files:
        for path in source_files():
            content = path.read_bytes()
            if generation:
                content = content.replace(b"self", b"self%d" % generation).replace(b"return", b"return%d " % generation)
            digest = hashlib.sha1(content, usedforsecurity=False).digest()
            mean_left = (total_bytes - size) / (files - count)
            if not content.strip() or digest in seen or len(content) > 12 * max(mean_left, 500):
                continue
            seen.add(digest)
            count, size = count + 1, size + len(content)
            yield (
                f"{count // 500:03}/part_{count % 500 // 20:02}/{count % 20:02}_{path.parent.name}_{path.name}",
                content,
            )
            if count == files:
                return
        generation += 1


if __name__ == "__main__":
    target = Path(sys.argv[1])
    print(*make_corpus(target, *(int(each) for each in sys.argv[2:3]), *(float(each) for each in sys.argv[3:4])))
