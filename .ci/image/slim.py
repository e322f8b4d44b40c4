"""`python slim.py ENVIRONMENT [COMMAND ...]`: take out of a virtual environment what the program never loads.

Files that go or change are noted in their package's RECORD, so it still says what is there. The build loads the program
and its model afterwards: whatever was taken out by mistake fails the build, not the container.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# Relative to site-packages; a pattern that matches nothing is an error, so that none outlives its reason.
UNUSED = (
    "*/tests",
    "*/*/tests",
    # The backend for other Pythons than CPython.
    "zstandard/_cffi.*",
    # For type checkers and compilers.
    *(f"**/*.{suffix}" for suffix in ("pyi", "pyx", "pxd", "c", "h", "cpp")),
)
# auditwheel has rewritten the headers of these; strip has broken such files.
NOT_STRIPPED = (".libs",)


def main() -> None:
    environment, commands = Path(sys.argv[1]), {"python", *sys.argv[2:]}
    (packages,) = environment.glob("lib/python3.*/site-packages")
    before = size(environment)
    for pattern in UNUSED:
        matches = list(packages.glob(pattern))
        if not matches:
            sys.exit(f"slim: nothing matches {pattern} any more; look what became of it")
        for path in matches:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in (environment / "bin").iterdir():
        if path.name not in commands and not (path.is_symlink() and path.name.startswith("python")):
            path.unlink()
    if shutil.which("strip"):
        for path in libraries(packages):
            subprocess.run(["strip", "--strip-unneeded", path], check=True)  # noqa: S603, S607
    else:
        say("there is no `strip` in the build's base (package binutils): the image keeps debug symbols nobody reads")
    for record in packages.glob("*.dist-info/RECORD"):
        renew(record)
    say(f"{before / 1e6:.0f} MB are {size(environment) / 1e6:.0f} MB")


def libraries(packages: Path) -> Iterator[Path]:
    for path in packages.rglob("*.so"):
        if path.is_symlink() or any(part.endswith(NOT_STRIPPED) for part in path.relative_to(packages).parts):
            continue
        with path.open("rb") as file:
            if file.read(4) == b"\x7fELF":
                yield path


def renew(record: Path) -> None:
    """Only rows of files that are there, with their hashes (PEP 376, PEP 427)."""
    with record.open(newline="") as file:
        rows = list(csv.reader(file))
    kept = []
    for name, digest, length in rows:
        path = record.parent.parent / name
        if not path.is_file():
            continue
        if digest and name.endswith(".so"):
            content = path.read_bytes()
            encoded = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            digest, length = f"sha256={encoded}", str(len(content))
        kept.append((name, digest, length))
    with record.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(kept)


def size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*"))


def say(text: str) -> None:
    sys.stdout.write(f"slim: {text}\n")


if __name__ == "__main__":
    main()
