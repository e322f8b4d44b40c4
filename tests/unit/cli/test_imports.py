"""Commands import only what they use: a short command must not pay for the libraries of a long one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.patience import PATIENCE_SECONDS

HEAVY = (
    "apscheduler", "dulwich", "fastapi", "gitlab", "httpx", "langchain_text_splitters", "numpy", "onnxruntime",
    "pydantic", "qdrant_client", "redis", "requests", "rich", "ruamel", "sqlalchemy", "sqlmodel", "starlette",
    "tokenizers",
)  # fmt: skip
EMBEDDED = ("embedding.local", "embedding.static")
DATABASE = {"pydantic", "sqlalchemy", "sqlmodel"}
SCRIPT = """
import json, sys
sys.argv = ["reposync", *json.loads(sys.argv[1])]
from reposync.cli.main import main
try:
    main()
finally:
    loaded = sorted(set(json.loads({heavy!r})) & set(sys.modules))
    print(json.dumps(loaded), file=sys.stderr)
"""


def heavy_modules(folder: Path, *arguments: str, **environ: str) -> set[str]:
    """The heavy modules that are imported by a command, run in a process of its own with an empty state."""
    script = SCRIPT.format(heavy=json.dumps(HEAVY))
    environment = {"HOME": str(folder), "PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), **environ}
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(arguments)],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        (("--help",), set()),
        (("version",), set()),
        (("history",), DATABASE),
        (("locks", "list"), DATABASE),
        (("db", "current"), DATABASE),
        (("config", "check"), {"pydantic"}),
    ],
)
def test_a_command_imports_only_what_it_uses(arguments: tuple[str, ...], needed: set[str], tmp_path: Path) -> None:
    assert heavy_modules(tmp_path, *arguments) <= needed


@pytest.mark.parametrize("arguments", [("search", "expired sessions"), ("grep", "expired"), ("sync",)])
def test_a_search_a_reader_and_a_sync_without_work_import_no_sources_and_no_model(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    # With a server's address no embedded engine is started; nothing is indexed, so the server is not asked.
    assert heavy_modules(tmp_path, *arguments, REPOSYNC_QDRANT_URL="http://127.0.0.1:9") <= DATABASE | {"httpx", "rich"}


def test_a_sync_without_changes_imports_nothing_that_embeds_or_changes_the_index(tmp_path: Path) -> None:
    modules = (
        "app.application",
        "embedding.local",
        "embedding.static",
        "sources.local",
        "sync.sync_run",
        "vectors.index",
    )
    lines = "\n".join(f"import reposync.{each}" for each in modules)
    done = subprocess.run(
        [sys.executable, "-c", f"{lines}\nimport sys\nprint(*sys.modules)"],
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True,
    )  # fmt: skip

    heavy = {"langchain_text_splitters", "numpy", "onnxruntime", "qdrant_client", "tokenizers"}
    assert not heavy & set(done.stdout.split())


@pytest.mark.parametrize("words", ["reposync serve --", "reposync search --repository ", "reposync runs show "])
def test_the_tab_key_imports_nothing_heavy(words: str, tmp_path: Path) -> None:
    completion = {"_REPOSYNC_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    assert heavy_modules(tmp_path, **completion) == set()
