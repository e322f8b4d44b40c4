"""Makes the table of word vectors of the provider `static`: downloads the packages of `static_packages.tsv`, makes
pairs of comments and code, trains the table and writes it.

Downloads are kept in --downloads, or else deleted. The same list gives the same bytes on processors of the same kind.
Needs pip, npm, go, cargo, Maven and apt-get of a Debian 12, for the packages of their registries.

python -m benchmarks.static_table [--only NAME,NAME...] [--downloads FOLDER] [--output FOLDER]
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.static_pairs import SUFFIXES, Corpus
from benchmarks.static_sources import Package, fetch, read_list, source_files
from benchmarks.static_training import Trained, train

LIST: Final = Path(__file__).with_name("static_packages.tsv")
OUTPUT: Final = Path(__file__).parents[1] / "reposync" / "embedding" / "static"
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_TEST_SETS: Final = (
    "abseil abseil-cpp absl aeson aiohttp alamofire axios axum bash-it bats bats-core borg borgbackup cats chi"
    " circe clap click cobra commons-lang commons-lang3 coroutines curl dapper databind datasette dulwich ecto"
    " exposed express fastapi flask fmt fmtlib gin gin-gonic go-chi gson guzzle guzzlehttp http4s httpx hugo"
    " illuminate jackson-databind kotlinx-coroutines ktor lang3 laravel lazy libuv messagepack messagepack-csharp"
    " mini model2vec monolog newtonsoft nlohmann nvm octocode pandoc phoenix plug procrastinate pydantic rack"
    " rails railties redis redux requests serde sinatra snapkit sourcebot starlette telescope tokio trpc typeorm"
    " vapor vitest xmonad zig zig-clap zls zod"
)
TEST_SETS: Final = frozenset(_TEST_SETS.split())
"""Projects whose questions measure the table: no package of theirs is in the list, and no file is read that has one of
them in its path, since packages bring copies of others."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="packages by name, separated by commas; default: all of the list")
    parser.add_argument("--downloads", type=Path, help="folder in which the archives are kept")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    if not _ONE_THREAD.items() <= os.environ.items():
        # Read when numpy is loaded. Threads add numbers in any order.
        os.execve(sys.executable, sys.orig_argv, os.environ | _ONE_THREAD)
    packages = read_list(LIST)
    if arguments.only:
        packages = [each for each in packages if each.name in arguments.only.split(",")]

    began = time.perf_counter()

    def report(line: str) -> None:
        print(f"{time.perf_counter() - began:6.0f} s, {time.process_time():5.0f} CPU s  {line}", flush=True)

    with contextlib.ExitStack() as stack:
        folder = arguments.downloads or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        archives = fetch(packages, folder)
        report(f"{len(packages)} packages, {sum(file.stat().st_size for file in archives.values()) / 1e6:.0f} MB")
        corpus, pairs = Corpus(), Counter[str]()
        for package, file in archives.items():
            pairs[package.language] += corpus.add_package(source_files(file, SUFFIXES, TEST_SETS), package.name)
    report(f"{len(corpus.window_ends)} windows; pairs: {', '.join(f'{key} {n}' for key, n in pairs.most_common())}")
    trained = train(corpus, report)
    print(f"SHA-256 {write(trained, packages, arguments.output)}")


def write(trained: Trained, packages: list[Package], folder: Path) -> str:
    """Returns the checksum of the table: of its three files, one after another."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "vectors.npy", trained.vectors)
    np.save(folder / "scales.npy", trained.scales)
    (folder / "words.txt").write_text("".join(f"{word}\n" for word in trained.words), "utf-8")
    rows = sorted(f"{each.name}\t{each.version}\t{each.licence}\t{each.language}\n" for each in packages)
    (folder / "sources.tsv").write_text("name\tversion\tlicence\tlanguage\n" + "".join(rows), "utf-8")
    table = b"".join((folder / name).read_bytes() for name in ("vectors.npy", "scales.npy", "words.txt"))
    return hashlib.sha256(table).hexdigest()


if __name__ == "__main__":
    main()
