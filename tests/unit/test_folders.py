"""Folders that test runs leave in memory when they are killed."""

import contextlib
import subprocess
import sys
from pathlib import Path

from tests.fixtures.folders import quick_folder

PROGRAM = """
from tests.fixtures.folders import quick_folder
with quick_folder() as folder:
    print(folder, flush=True)
    input()
"""


def test_the_folder_of_a_killed_test_run_is_removed_by_the_next_and_one_in_use_is_kept():
    with contextlib.ExitStack() as running:
        killed, in_use = (
            running.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for _ in range(2)
        )
        assert killed.stdout and in_use.stdout
        left, kept = (Path(each.stdout.readline().strip()) for each in (killed, in_use))
        killed.kill()
        killed.wait()
        with quick_folder() as mine:
            assert (left.exists(), kept.is_dir(), mine.is_dir()) == (False, True, True)
        in_use.communicate("\n")
        assert not kept.parent.exists()
