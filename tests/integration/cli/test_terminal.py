"""Commands at a terminal: a pseudo-terminal stands for the person's."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from reposync.cli.progress import open_display
from reposync.sync.progress import RunProgress
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.pods import until
from tests.integration.cli.conftest import Types

COLOR = re.compile(r"\x1b\[[\d;]*3[1-7]m")


def at_a_terminal(*words: str, **environment: str) -> str:
    """What a program shows there."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    env = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "CI")}
    with subprocess.Popen(
        [sys.executable, *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**env, "TERM": "xterm-256color", **environment},
    ):
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the end, on Linux
            while part := os.read(ours, 65_536):
                shown += part
    os.close(ours)
    return shown.decode()


def test_each_run_is_a_bar_with_percentage_time_left_and_rate_in_one_line():
    shown = at_a_terminal("-c", f"from {__name__} import show_two; show_two()")

    plain = re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", shown)
    lines = [line for line in re.split(r"[\r\n]", plain) if "payments" in line]
    assert re.match(r"━+[╸╺]?━* +50% about \d+ min left +0\.0 chunks/s +payments: indexing 10 of 40 files", lines[-1])
    assert len(lines[-1]) <= 100
    assert re.search(r" 25% +a few seconds left +[34]\d\d chunks/s billing: indexing 10 of 10 files", plain)


def show_two() -> None:
    with open_display() as display:
        display.update("payments", RunProgress("listing"))
        progress = RunProgress("indexing", files_total=40, files_read=40, files_done=10, chunks_read=12)
        progress.started -= 600
        progress.waiting_for = "the embedding server at embeddings.example.com: attempt 2 of 3, and a name that is long"
        progress.chunks_embedded = 6
        display.update("payments", progress)
        other = RunProgress("indexing", files_total=10, files_read=10, files_done=10, chunks_read=1_600)
        other.started -= 1
        other.chunks_embedded = 400
        display.update("billing", other)


@pytest.mark.parametrize(("value", "is_colored"), [("", True), ("1", False)])
def test_no_color_holds_for_what_a_command_says(types: Types, tmp_path: Path, value: str, is_colored: bool):
    (tmp_path / "repositories.yaml").write_text("repositories: [{name: app, path: gone, schedule: never}]\n")
    types("apply")

    shown = at_a_terminal("-m", "reposync", "sync", "app", NO_COLOR=value)

    assert "app: failed" in shown
    assert (COLOR.search(shown) is not None) is is_colored, shown


def test_serve_says_first_where_its_pages_are(types: Types):
    ours, theirs = os.openpty()
    with subprocess.Popen([sys.executable, "-m", "reposync", "serve", "--port", "0"], stderr=theirs) as serve:
        os.close(theirs)
        shown, is_stopped = b"", False
        with contextlib.suppress(OSError):  # the end, on Linux
            while part := os.read(ours, 65_536):
                shown += part
                if b"\n" in shown and not is_stopped:
                    is_stopped = True
                    serve.send_signal(signal.SIGINT)
    os.close(ours)

    first = re.sub(r"\x1b\[[\d;]*m", "", shown.decode()).splitlines()[0]
    assert re.fullmatch(r"Pages: http://127\.0\.0\.1:\d+/ \(Ctrl-C stops\)", first), shown.decode()
    assert serve.returncode == 0


def test_a_hangup_does_not_end_a_daemon_that_is_starting(types: Types, tmp_path: Path):
    registry = tmp_path / "registry.yaml"
    opened: list[int] = []
    os.mkfifo(registry)
    command = [sys.executable, "-m", "reposync", "serve", "--port", "0"]
    env = {**os.environ, "REPOSYNC_CONFIG": str(registry)}

    def is_read() -> bool:
        with contextlib.suppress(OSError):
            opened.append(os.open(registry, os.O_WRONLY | os.O_NONBLOCK))
        return bool(opened) or serve.poll() is not None

    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE) as serve:
        try:
            until(is_read)
            assert opened
            serve.send_signal(signal.SIGHUP)
            os.write(opened[0], b"nonsense: 1\n")
            os.close(opened[0])
            _, err = serve.communicate(timeout=PATIENCE_SECONDS)
        finally:
            serve.kill()

    assert serve.returncode == 2, err


def test_an_agent_is_configured_with_the_registry_file_of_the_folder(types: Types, tmp_path: Path):
    (tmp_path / "repositories.yaml").write_text("repositories: []\n")

    code, entry, _ = types("mcp", "install", "claude", "--print")

    assert code == 0
    assert f'"REPOSYNC_CONFIG": "{tmp_path / "repositories.yaml"}"' in entry
