"""Where the bytes of the image are: a Markdown table. Run inside the image, or on its unpacked files:

docker run --rm -i --entrypoint python IMAGE - < .ci/image/sizes.py
python3 .ci/image/sizes.py FOLDER
"""

from __future__ import annotations

import csv
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ENVIRONMENT = "opt/reposync"
NOT_THE_IMAGE = ("proc", "sys", "dev", "tmp", "run")
ROW_BYTES = 2_000_000  # smaller packages share a row
OF_NO_PACKAGE = "of no package, in"


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "/")
    owner = {**debian(root), **python_packages(root)}
    sizes: Counter[tuple[str, str]] = Counter()
    seen: set[tuple[int, int]] = set()
    for path, found in files(root):
        if found.st_nlink > 1 and (found.st_dev, found.st_ino) in seen:
            continue
        seen.add((found.st_dev, found.st_ino))
        name = str(path)
        part = "reposync and its packages" if name.startswith(f"{ENVIRONMENT}/") else "base"
        what = "bytecode" if name.endswith(".pyc") else owner.get(name) or f"{OF_NO_PACKAGE} /{above(path)}"
        sizes[part, what] += found.st_size
    total = sum(sizes.values())
    sys.stdout.write("| MB | | |\n|---:|---|---|\n")
    for part in sorted({part for part, _ in sizes}, reverse=True):
        rows = {name: size for (where, name), size in sizes.items() if where == part}
        sys.stdout.write(f"| **{sum(rows.values()) / 1e6:.1f}** | **{part}** | |\n")
        small = {name: size for name, size in rows.items() if size < ROW_BYTES}
        for name, size in sorted(rows.items(), key=lambda row: -row[1]):
            if name not in small:
                sys.stdout.write(f"| {size / 1e6:.1f} | | {name} |\n")
        others = f"{len(small)} more, each below {ROW_BYTES / 1e6:.0f}"
        sys.stdout.write(f"| {sum(small.values()) / 1e6:.1f} | | {others} |\n")
    sys.stdout.write(f"| **{total / 1e6:.1f}** | **all files** | |\n")


def above(path: Path) -> str:
    """The folder that a file without a package is counted under: two levels tell enough."""
    return "/".join(path.parent.parts[:2])


def files(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Below `root`, without what is mounted there."""
    device = root.stat().st_dev
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        if here == root:
            folders[:] = [name for name in folders if name not in NOT_THE_IMAGE]
        folders[:] = [name for name in folders if (here / name).lstat().st_dev == device]
        for name in names:
            path = here / name
            yield path.relative_to(root), path.lstat()


def python_packages(root: Path) -> dict[str, str]:
    owner = {}
    for record in (root / ENVIRONMENT).glob("lib/python3.*/site-packages/*.dist-info/RECORD"):
        package = record.parent.name.removesuffix(".dist-info").replace("-", " ")
        with record.open(newline="") as file:
            for name, *_ in csv.reader(file):
                owner[os.path.normpath(record.parent.parent.relative_to(root) / name)] = package
    return owner


def debian(root: Path) -> dict[str, str]:
    owner = {}
    for listing in (root / "var/lib/dpkg/info").glob("*.list"):
        package = listing.stem.partition(":")[0]
        for line in listing.read_text().splitlines():
            # /lib is /usr/lib today, and packages still say /lib.
            name = line.removeprefix("/")
            first = name.partition("/")[0]
            owner[f"usr/{name}" if (root / first).is_symlink() else name] = package
    return owner


if __name__ == "__main__":
    main()
