"""What happens to an index in `index_model`: contents, settings, wrong answers, and interruptions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.fixtures.gitlab_server.faults import PAGE, Faults


def code(name: str, functions: int) -> bytes:
    return "".join(f"def {name}_{at}(value):\n    return value + {at}\n" for at in range(functions)).encode()


BRANCHES = ("main", "other")
# No name that is not UTF-8: at the top, if git is refused, nothing tells that JSON has another one, and by REST nobody
# learns how large such a file is.
PATHS = (b"a.py", b"b.py", b"lib/c.py", b"lib/d.md", b"gen/e.py", "ü/f g.py".encode(), b"run.sh")
CONTENTS = (
    b"",
    b"\x00\x01\x02" * 30,
    b"# @generated\nvalue = 1\n",
    PAGE.encode(),
    code("tiny", 1),
    code("alpha", 2),
    code("beta", 12),
    code("gamma", 30),
    code("delta", 9) + b"# the end\n",
)
ATTRIBUTES = (b"gen/** linguist-generated\n", b"*.md linguist-vendored\n", b"gen/** -linguist-generated\n", b"")

paths = st.sampled_from(PATHS)
contents = st.sampled_from(CONTENTS)
branches = st.sampled_from(BRANCHES)
SETTINGS: tuple[dict[str, Any], ...] = (
    *({"project": each} for each in (0, 1)),
    *({"branch": each} for each in (None, "main", "other")),
    *({"collection": each} for each in ("one", "two")),
    *({"model": each} for each in ("test/words", "test/other")),
    *({"window": each} for each in (None, 150)),
    *({"size": each} for each in (200, 500)),
    *({"max_file_bytes": each} for each in (1_000, 100_000)),
    *({"include": each} for each in ((), ("*.py",), ("lib/",), ("gen/e.py", "*.md"))),
    *({"exclude": each} for each in ((), ("lib/",), ("a.py", "ü/"))),
    *({"keep_retired": each} for each in ("0", "24h")),
)
BLOBS = "/blobs/.*/raw"
ANSWERS: dict[str, Callable[[Faults], object]] = {
    "login pages": lambda faults: faults.web_page(300),
    "large login pages": lambda faults: faults.web_page(200_000, announced=False),
    "a login page": lambda faults: faults.web_page(300, nth=2, times=1),
    "login pages for the second": lambda faults: faults.web_page(300, nth=2),
    "wrong bytes": lambda faults: faults.answer(200, b"wrong", path=BLOBS, times=None),
    "no blobs": lambda faults: faults.answer(404, '{"message":"404 Blob Not Found"}', path=BLOBS, times=None),
    "no second blob": lambda faults: faults.answer(404, '{"message":"404 Blob Not Found"}', path=BLOBS, nth=2),
    "forbidden blobs": lambda faults: faults.answer(403, path=BLOBS, times=None),
    "cut blobs": lambda faults: faults.cut_body(5, path=BLOBS, times=None),
    "a cut listing": lambda faults: faults.cut_body(20, path="/repository/tree", times=None),
    "a short listing": lambda faults: faults.edit_rows(lambda rows: rows[:-1]),
    "a listing of one file": lambda faults: faults.edit_rows(lambda rows: rows[:1]),
    "an empty listing": lambda faults: faults.edit_rows(lambda rows: []),
    "a login page as listing": lambda faults: faults.answer(
        200, PAGE, media_type="text/html", path="/repository/tree", times=None
    ),
    "no project": lambda faults: faults.answer(404, '{"message":"404 Project Not Found"}', path="/api/", times=None),
    "an error": lambda faults: faults.bad_gateway(path="/api/", nth=2, times=None),
}
EMBEDDING_ANSWERS = ((400, 1), (400, 3), (400, 100), (401, 100), (503, 1), (503, 100), (200, 1))


@dataclass
class Interruption:
    """At the exchange number `at`. `how`: one of the faults, or what happens to the process."""

    at: int
    how: str


interruptions = st.builds(
    Interruption,
    at=st.integers(1, 30),
    how=st.sampled_from(["refused", "lost", "down", "cancelled", "handed back", "taken over"]),
)
