"""Parsers give back what they read."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest

PROGRAM = dedent("""
    from pathlib import Path
    import reposync
    from reposync.content.grammars import GRAMMAR_LANGUAGES
    from reposync.content.symbols import OverBudget, definitions

    def resident_mb():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // 10**6

    def parse(text, language):
        try:
            definitions(text, language)
        except OverBudget:
            pass

    honest = [path.read_text() for path in sorted(Path(reposync.__file__).parent.rglob("*.py"))[:60]]
    units = ["/*", "\\\\", "'", "<", 'r#"', "`", "{", '"', "a.", "x=>"]

    def honest_files():
        for text in honest:
            parse(text, "python")

    def hostile_files():
        for language in sorted(GRAMMAR_LANGUAGES):
            for unit in units:
                parse(unit * (7_000 // len(unit)), language)

    work = {WORK}
    work()
    before = resident_mb()
    for _ in range({TIMES}):
        work()
    print(resident_mb() - before)
""")


@pytest.mark.full
@pytest.mark.parametrize(("work", "times"), [("honest_files", 40), ("hostile_files", 1)])
def test_memory_does_not_grow_with_the_files_that_are_parsed(work: str, times: int) -> None:
    """Before: 0.6 MB for each MB of code, 80 MB for 7 kB of nonsense."""
    program = PROGRAM.replace("{WORK}", work).replace("{TIMES}", str(times))
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=170)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) < 12
