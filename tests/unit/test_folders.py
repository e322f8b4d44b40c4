"""Folders that test runs leave in memory when they are killed."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.fixtures.folders import quick_folder

PROGRAM = """
from tests.fixtures.folders import quick_folder
with quick_folder() as folder:
    print(folder, flush=True)
    input()
"""


@contextlib.contextmanager
def program_with_a_folder() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())


def test_the_folder_of_a_killed_test_run_is_removed_by_the_next_and_one_in_use_is_kept() -> None:
    with contextlib.ExitStack() as running:
        killed, left = running.enter_context(program_with_a_folder())
        in_use, kept = running.enter_context(program_with_a_folder())
        killed.kill()
        killed.wait()
        with quick_folder() as mine:
            assert (left.exists(), kept.is_dir(), mine.is_dir()) == (False, True, True)
        in_use.communicate("\n")
        assert not kept.parent.exists()
