"""What somebody gets who installs the package and has nothing else: no checkout, no git, no network.

By default into an environment of this interpreter with the files of requirements.lock linked into it. REPOSYNC_PYTHONS
(programs with `:` between them) has it done for each of them as a user does it, by pip from a registry: `make package`.
"""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.acceptance.conftest import Person
from tests.fixtures.installation import (
    ROOT,
    Built,
    Environment,
    build,
    installed_environment,
    linked_environment,
    locked,
)
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.pods import Pod, until
from tests.fixtures.repositories import GitRepository

pytestmark = pytest.mark.full

PYTHONS = [python for python in os.environ.get("REPOSYNC_PYTHONS", "").split(os.pathsep) if python]
BILLING = b'''"""Billing."""


def remove_expired_sessions(sessions, now):
    """Drop every session whose deadline has passed."""
    return [session for session in sessions if session.deadline > now]
'''


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module", params=PYTHONS or ["linked"])
def environment(built: Built, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("environment") / "venv"
    made = linked_environment(folder) if request.param == "linked" else installed_environment(folder, request.param)
    made.install(built.wheel)
    return made


def test_the_wheel_holds_everything_that_the_tree_has_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        names = set(wheel.namelist())
        inside = {name for name in names if name.startswith("reposync/")}
        other = {name.partition("dist-info/")[2] for name in names - inside}

    tree = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "reposync").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    documentation = {f"reposync/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "docs").rglob("*.md")}
    assert inside == tree | documentation
    assert {Path(name).suffix for name in inside} >= {".html", ".css", ".js", ".svg", ".json", ".typed", ".py"}
    assert any("/migrations/versions/" in name for name in inside)
    assert other == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE", "licenses/NOTICE"}


def test_the_sdist_holds_what_it_takes_to_build_and_test_it_and_no_leftovers(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert names >= {"pyproject.toml", "requirements.lock", "requirements-dev.lock", "Makefile", "LICENSE", "NOTICE"}
    assert names >= {"tests/acceptance/test_package.py", "config/schema.json", "docs/architecture.md"}
    assert {name.partition("/")[0] for name in names if name.startswith(".")} <= {
        ".ci", ".gitattributes", ".gitignore", ".dockerignore",
    }  # fmt: skip
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".db"))]


def test_its_metadata_say_what_it_is_and_the_lock_has_all_that_it_requires(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("dist-info/METADATA"))
        reported = HeaderParser().parsestr(wheel.read(name).decode())
    versions = {requirement.name: requirement.specifier for requirement in locked()}

    assert (reported["Name"], reported["License-Expression"], reported["Requires-Python"]) == (
        "reposync",
        "Apache-2.0",
        ">=3.11",
    )
    requirements = map(Requirement, reported.get_all("Requires-Dist", []))
    # The lock is that of the image, without extras.
    for required in (each for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})):
        assert required.name in versions, f"{required} is not in requirements.lock: `make lock`"
        (pinned,) = versions[required.name]
        assert required.specifier.contains(pinned.version, prereleases=True), f"{required}, locked {pinned}"


def test_installed_it_syncs_searches_and_shows_its_pages(
    environment: Environment, person: Person, repository: GitRepository, tmp_path: Path
) -> None:
    assert "No broken requirements found." in environment.check()
    repository.commit({"billing.py": BILLING, "README.md": b"# Payments\n\nInvoices and dunning.\n"})
    # An environment as empty as can be: not even git is in PATH, and no proxy or registry could be reached by name.
    person.environment |= {
        "PYTHONPATH": "",
        "PATH": os.fspath(environment.folder / "bin"),
        "PYTHONWARNINGS": "error::ResourceWarning",
    }
    person.program = (os.fspath(environment.reposync),)

    versions = person.asks("version")
    assert versions["python"] == outside(environment, "import platform; print(platform.python_version())").strip()
    assert outside(environment, "import reposync; print(reposync.__file__)").startswith(os.fspath(environment.folder))
    with pytest.raises(subprocess.CalledProcessError):
        outside(environment, "import pytest")

    (run,) = person.lists("sync", os.fspath(repository.path))
    assert (run["status"], run["files_processed"]) == ("completed", 2)
    hits = person.lists("search", "where are old logins thrown away")
    assert hits[0]["path"] == "billing.py"
    assert json.loads(person.types("config", "schema").stdout) == json.loads((ROOT / "config/schema.json").read_text())

    person.program = (os.fspath(environment.python), "-m", "reposync")
    assert person.asks("version") == versions
    assert "reposync [OPTIONS] COMMAND" in person.types("--help").stdout

    with Pod("installed", tmp_path / "pod", dict(person.environment), program=person.program) as pod:
        until(lambda: pod.gets("/readyz").status_code == 200, details=pod.log_tail)
        page = pod.gets("/")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "reposync" in page.text
        for path in ("/runs", "/search", "/workers", "/static/app.css", "/static/icon.svg", "/docs", "/help/errors"):
            assert pod.gets(path).status_code == 200, path
        assert pod.terminate() == 0


def outside(environment: Environment, program: str) -> str:
    """What the environment's interpreter prints, started where there is no checkout."""
    done = subprocess.run(
        [environment.python, "-c", program],
        cwd="/",
        env={},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    return done.stdout
