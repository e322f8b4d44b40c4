"""The unit file of the documentation: systemd accepts it, and its command serves with nothing but its environment."""

from __future__ import annotations

import configparser
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.docs.pages import ROOT
from tests.fixtures.folders import quick_folder
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.pods import end_engines, until
from tests.fixtures.supervised import free_port

PAGE = ROOT / "docs" / "run-on-a-server.md"
ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="there is no systemd-analyze")
PROGRAM = Path(sys.executable).with_name("reposync")
TOKEN = "0123456789abcdef0123"


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(found)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The documented unit; its program is the one of this environment, since systemd looks whether it exists."""
    documented = block("ini")
    assert "ExecStart=/opt/reposync/bin/reposync " in documented
    path = tmp_path / "reposync.service"
    path.write_text(documented.replace("/opt/reposync/bin/reposync", os.fspath(PROGRAM)))
    return path


@needs_systemd
def test_systemd_accepts_the_documented_unit(unit: Path) -> None:
    done = subprocess.run([str(ANALYZE), "verify", unit], capture_output=True, text=True, timeout=PATIENCE_SECONDS)

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@needs_systemd
def test_systemd_rates_the_documented_unit_as_the_page_says(unit: Path) -> None:
    command = [str(ANALYZE), "security", "--offline=yes", unit]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, env=os.environ | {"COLUMNS": "200"}
    )
    if "Overall exposure level" not in done.stdout:
        pytest.skip(f"this systemd-analyze cannot rate a file: {done.stderr.strip()}")

    assert re.search(r"Overall exposure level for \S+: [\d.]+ OK", done.stdout), done.stdout[-200:]


def test_the_documented_service_starts_answers_and_stops_in_its_time(unit: Path) -> None:
    service = configparser.ConfigParser(strict=False, interpolation=None)
    service.optionxform = str  # type: ignore[assignment,method-assign]
    service.read(unit)
    settings = service["Service"]
    with quick_folder() as folder:
        places = {"/etc/reposync": folder / "etc", "/var/lib/reposync": folder / "state"}
        for place in places.values():
            place.mkdir()
        (folder / "etc" / "repositories.yaml").write_text(block("yaml"))
        variables = dict(each.split("=", 1) for each in shlex.split(settings["Environment"]))
        for name, value in variables.items():
            for documented, here in places.items():
                value = value.replace(documented, os.fspath(here))
            variables[name] = value
        # What the page has in its env file.
        secrets = {"GITLAB_TOKEN": "glpat-nobody", "REPOSYNC_API_TOKEN": f"operate:{TOKEN}"}
        port = free_port()
        command = [*shlex.split(settings["ExecStart"])]
        command[command.index("8080")] = str(port)
        with (folder / "journal").open("w") as journal:
            daemon = subprocess.Popen(command, cwd="/", env=variables | secrets, stdout=journal, stderr=journal)
        try:
            until(lambda: _is_ready(port, daemon, folder / "journal"), 60, (folder / "journal").read_text)
            read = httpx.get(f"http://127.0.0.1:{port}/api/v1/runs", headers={"Authorization": f"Bearer {TOKEN}"})
            assert read.status_code == 200
            # As the page has it typed: the state folder and no secret.
            typed = subprocess.run(
                [PROGRAM, "history"],
                env={"REPOSYNC_STATE_DIR": variables["REPOSYNC_STATE_DIR"]},
                capture_output=True,
                text=True,
                timeout=PATIENCE_SECONDS,
            )
            assert typed.returncode == 0, typed.stdout + typed.stderr
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(int(settings["TimeoutStopSec"])) == 0
        finally:
            daemon.kill()
            daemon.wait()
            end_engines(folder)


def test_a_mistake_in_the_registry_ends_the_service_with_the_code_that_is_not_restarted(unit: Path) -> None:
    (prevented,) = re.findall(r"RestartPreventExitStatus=(\d+)", unit.read_text())
    with quick_folder() as folder:
        (folder / "repositories.yaml").write_text("repositories:\n  - {nam: payments}\n")
        variables = {
            "REPOSYNC_CONFIG": os.fspath(folder / "repositories.yaml"),
            "REPOSYNC_STATE_DIR": os.fspath(folder / "state"),
        }
        done = subprocess.run(
            [PROGRAM, "serve"], env=variables, capture_output=True, text=True, timeout=PATIENCE_SECONDS
        )

    assert done.returncode == int(prevented)
    assert "repositories.yaml:2:" in done.stderr


def _is_ready(port: int, daemon: subprocess.Popen[bytes], journal: Path) -> bool:
    assert daemon.poll() is None, journal.read_text()
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=PATIENCE_SECONDS).status_code == 200
    return False
