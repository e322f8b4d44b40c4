"""What is installed along with it: under which licences, and what `make audit` says of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import boolean
import pytest
from license_expression import LicenseSymbol, get_spdx_licensing
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from tests.fixtures.gitlab_server.serving import ThreadedServer
from tests.fixtures.installation import ROOT, locked
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.supervised import free_port

AUDIT = ROOT / ".ci" / "audit.py"
LOCK = """\
mmh3==5.2.0 --hash=sha256:{zeros}
click==8.2.0 --hash=sha256:{zeros}
""".format(zeros="0" * 64)

# Each lets anybody use and pass on the package beside our own code. MPL and LGPL ask for changes of their own files
# alone, of which there are none here.
ACCEPTED = frozenset(
    {
        "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "LGPL-3.0-or-later", "MIT",
        "MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Zlib",
    }
)  # fmt: skip
# As the wheels that were made before licence expressions say it.
SPELLINGS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0-or-later",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
# Whose metadata say nothing: read from the LICENSE file of its repository.
SILENT = {"py-rust-stemmers": "MIT"}


def test_every_dependency_has_a_licence_that_is_known_and_accepted() -> None:
    licensing = get_spdx_licensing()
    told = {requirement.name: licence_of(requirement.name) for requirement in locked()}

    assert {name: text for name, text in told.items() if not accepted(licensing.parse(text))} == {}


def accepted(expression: Any) -> bool:
    """`A OR B` leaves the choice to us, `A AND B` does not."""
    match expression:
        case LicenseSymbol():
            return expression.key in ACCEPTED
        case boolean.OR():
            return any(map(accepted, expression.args))
        case boolean.AND():
            return all(map(accepted, expression.args))
    return False  # nothing is said, or something with an exception


def licence_of(name: str) -> str:
    """An SPDX expression, as far as the distribution says one."""
    told = metadata.distribution(name).metadata
    if expression := told.get("License-Expression"):
        return expression
    classified = [
        line.rpartition(" :: ")[2] for line in told.get_all("Classifier", []) if line.startswith("License ::")
    ]
    if classified:
        return " OR ".join(SPELLINGS.get(each, each) for each in classified)
    first = (told.get("License") or "").strip().split("\n")[0]
    return SPELLINGS.get(first, first) or SILENT.get(name, "")


class Advisories:
    """A vulnerability service that answers as https://google.github.io/osv.dev/api/ describes."""

    def __init__(self) -> None:
        self.vulnerable: dict[str, str] = {}
        self.asked: list[tuple[str, str]] = []
        self._server = ThreadedServer()
        self.url = f"{self._server.url}/v1/query"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = await Request(scope, receive).json()
        name, version = query["package"]["name"], query["version"]
        self.asked.append((name, version))
        found = []
        if name in self.vulnerable:
            ranges = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": self.vulnerable[name]}]}]
            affected = [{"package": {"name": name, "ecosystem": "PyPI"}, "ranges": ranges}]
            found.append(
                {"id": "PYSEC-0-1", "aliases": ["CVE-0-1"], "summary": "Bad", "details": "Bad", "affected": affected}
            )
        await JSONResponse({"vulns": found} if found else {})(scope, receive, send)

    def __enter__(self) -> Advisories:
        self._server.serve(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()


@pytest.fixture
def advisories() -> Iterator[Advisories]:
    with Advisories() as service:
        yield service


def audit(tmp_path: Path, url: str, lock: str = LOCK) -> subprocess.CompletedProcess[str]:
    (tmp_path / "lock.txt").write_text(lock)
    command = [sys.executable, os.fspath(AUDIT), "--service", "osv", "--osv-url", url, os.fspath(tmp_path / "lock.txt")]
    kept = {"PATH": os.environ["PATH"], "HOME": os.fspath(tmp_path), "NO_PROXY": "127.0.0.1"}
    return subprocess.run(command, env=kept, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)


def test_an_audit_says_how_much_it_looked_at_and_what_is_vulnerable(tmp_path: Path, advisories: Advisories) -> None:
    done = audit(tmp_path, advisories.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("2 dependencies in ")
    assert sorted(advisories.asked) == [("click", "8.2.0"), ("mmh3", "5.2.0")]

    advisories.vulnerable["click"] = "8.2.1"
    done = audit(tmp_path, advisories.url)
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == "click 8.2.0: PYSEC-0-1, CVE-0-1; mended in 8.2.1"
    assert audit(tmp_path, advisories.url, "").returncode == 2, "an audit of nothing is no audit"


def test_an_audit_that_reaches_nobody_fails_and_says_so(tmp_path: Path) -> None:
    done = audit(tmp_path, f"http://127.0.0.1:{free_port()}/v1/query")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: not audited: the service osv cannot be reached at 127.0.0.1.")
    assert "Traceback" not in done.stderr
