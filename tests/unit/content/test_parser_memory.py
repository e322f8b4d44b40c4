"""Parsers give back what they read."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest

PROGRAM = dedent("""
    from pathlib import Path
    import reposync
    from reposync.content.symbols import OverBudget, definitions

    def resident_mb():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // 10**6

    def parse(text, language):
        try:
            definitions(text, language)
        except OverBudget:
            pass

    honest = [path.read_text() for path in sorted(Path(reposync.__file__).parent.rglob("*.py"))[:60]]

    def honest_files():
        for text in honest:
            parse(text, "python")

    honest_files()
    before = resident_mb()
    for _ in range(40):
        honest_files()
    print(resident_mb() - before)
""")


@pytest.mark.full
def test_memory_does_not_grow_with_the_files_that_are_parsed() -> None:
    """Before: 0.6 MB for each MB of code."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=170)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) < 12
