"""Somebody who types what a page says, in the order in which it stands there, in a shell of their own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import IO, Any

import httpx
from ruamel.yaml import YAML

from tests.docs.pages import Place
from tests.docs.shell import Typed, as_expected, simple_commands
from tests.fixtures.supervised import free_port
from tests.fixtures.warm_program import CLIENT

# What is typed and run.
RUN = {"reposync", "curl", "export", "unset", "cd", "cp", "rm", "echo", "printf", "openssl", "hostname", "cat", "date"}
# Only recognised: there is no cluster and no engine here, packages and images have tests of their own, targets and
# modules are looked up, and the clients of databases are not installed everywhere.
NOT_RUN = {
    *("kubectl", "helm", "docker", "podman", "buildah", "make", "python", "python3", "pip", "apt-get", "git", "sudo"),
    *("pg_dump", "pg_restore", "psql", "sqlite3", ".venv/bin/pytest"),
}
COMMAND_SECONDS = 60.0
# A mistake on a page must not empty the machine that tests it.
REMOVE = """#!/bin/sh
for path; do
    case "$path" in -*|"$HOME"/?*) ;; *) echo "rm: $path is not in $HOME" >&2; exit 1 ;; esac
done
PATH=/usr/bin:/bin exec rm "$@"
"""
STATES = {"approve": "blocked", "retry": "failed", "cancel": "queued"}


def programs_in(folder: Path, warm_program: str) -> Path:
    """The programs that the shells find first; `warm_program`: the address of the process that forks."""
    folder.mkdir()
    _script(folder / "reposync", CLIENT.format(python=sys.executable, socket=warm_program))
    # An HTTP error is a command that failed.
    _script(folder / "curl", f'#!/bin/sh\nexec {shutil.which("curl")} --fail-with-body --silent --show-error "$@"\n')
    _script(folder / "rm", REMOVE)
    return folder


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@dataclass
class Newcomer:
    """`places`: what stands in a page, such as an address, and what is in its place here."""

    home: Path
    programs: Path
    environment: Mapping[str, str]
    places: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    registry: dict[str, Any] = field(default_factory=dict)
    _shell: subprocess.Popen[str] | None = None
    _daemon: int | None = None

    def __enter__(self) -> Newcomer:
        kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
        variables = {
            **kept,
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "REPOSYNC_ENGINE_IDLE_SECONDS": "20",
            **self.environment,
        }
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=self.home,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        (self.home / ".answer").write_text("y\n" * 9)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._shell is not None and self._shell.stdin is not None and self._shell.stdout is not None
        try:
            self.stops_the_daemon()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._shell.pid, signal.SIGKILL)
            self._shell.stdin.close()
            self._shell.stdout.close()
            self._shell.wait()
            for record in self.home.rglob("engine.json"):
                if pid := json.loads(record.read_text()).get("pid"):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGTERM)

    # What is written -------------------------------------------------------------------------------------------------

    def registers(self, text: str) -> None:
        """Take the snippet's sections into repositories.yaml, in place of those of the same name."""
        self.registry |= YAML(typ="safe").load(self.localised(text)) or {}
        # Where a page says nothing of embeddings, the model's seconds are not what it is about.
        document = {"embedding": {"provider": "none"}, **self.registry}
        out = StringIO()
        YAML(typ="safe").dump(document, out)
        (self.home / "repositories.yaml").write_text(out.getvalue())

    def writes(self, name: str, text: str) -> None:
        (self.home / name).write_text(self.localised(text))

    def localised(self, text: str) -> str:
        for shown, here in sorted(self.places.items(), key=lambda place: -len(place[0])):
            text = text.replace(shown, here)
        return text

    # What is typed ---------------------------------------------------------------------------------------------------

    def types(self, command: Typed) -> None:
        """Run it, and compare what it prints with what is shown below it."""
        line = self.localised(command.without_remark)
        programs = {words[0] for words in simple_commands(line)}
        if programs & NOT_RUN:
            return
        line = self._with_id(line)
        if any(words[:2] == ["reposync", "serve"] for words in simple_commands(line)):
            self.starts_a_daemon(line, command.at)
            return
        code, printed = self.run(line)
        reported = f"{command.at}: $ {line}\nexit code {code}\n{printed}"
        fails = re.search(r"# exit code (\d+)", command.line)
        assert code == int(fails[1] if fails else 0), reported
        assert "Traceback" not in printed, reported
        rest = printed.splitlines()
        for shown in command.shown:
            expected = as_expected(self.localised(shown))
            at = next((number for number, each in enumerate(rest) if expected.fullmatch(each.strip())), None)
            assert at is not None, f"{reported}\nand not, in this place:\n{shown}"
            rest = rest[at + 1 :]

    def run(self, line: str) -> tuple[int, str]:
        """In the shell, whose variables and folder stay. The person says yes to whatever is asked."""
        assert self._shell is not None and self._shell.stdin is not None and self._shell.stdout is not None
        out = self.home / ".printed"
        self._shell.stdin.write(f'{{ {line}\n}} > "{out}" 2>&1 < "{self.home}/.answer"\necho "ended $?"\n')
        self._shell.stdin.flush()
        ended = self._line(self._shell.stdout)
        assert ended.startswith("ended "), f"$ {line}\nthe shell said: {ended}"
        return int(ended.split()[1]), out.read_text()

    def queries(self, text: str, at: Place) -> None:
        """On the database that the commands have made."""
        (path,) = self.home.glob("**/state/reposync/reposync.db")
        with contextlib.closing(sqlite3.connect(path)) as database:
            try:
                database.execute(text)
            except sqlite3.Error as error:
                raise AssertionError(f"{at}: {error}") from error

    def _line(self, stream: IO[str]) -> str:
        ready, _, _ = select.select([stream], [], [], COMMAND_SECONDS)
        assert ready, f"nothing in {COMMAND_SECONDS} s; so far:\n{(self.home / '.printed').read_text()}"
        return stream.readline()

    def _with_id(self, line: str) -> str:
        """`ID` is the newest run that the command can be for."""
        if not re.search(r"\bID\b", line):
            return line
        words = next(words for words in simple_commands(line) if "ID" in words)
        state = STATES.get(words[2] if len(words) > 2 else "")
        code, printed = self.run("reposync history --json --limit 50")
        assert code == 0, printed
        runs = [run for run in json.loads(printed) if state is None or run["status"] == state]
        assert runs, f"$ {line}: no run is {state} in\n{printed}"
        return re.sub(r"\bID\b", runs[0]["id"], line)

    # A daemon --------------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def starts_a_daemon(self, line: str = "reposync serve", at: Place | None = None) -> None:
        """It goes on while the next commands are typed. A second one takes the place of the first."""
        self.stops_the_daemon()
        log = self.home / ".daemon.log"
        code, printed = self.run(f'{line} --port {self.port} > "{log}" 2>&1 &\necho $!')
        assert code == 0, f"{at}: {printed}"
        self._daemon = int(printed)
        deadline = time.monotonic() + COMMAND_SECONDS
        while True:
            alive = self.run(f"kill -0 {self._daemon}")[0] == 0
            assert alive and time.monotonic() < deadline, f"{at}: $ {line}\n{log.read_text()}"
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/readyz", timeout=10).status_code == 200:
                    return
            time.sleep(0.05)

    def stops_the_daemon(self) -> None:
        if self._daemon is None:
            return
        pid, self._daemon = self._daemon, None
        code, printed = self.run(f"kill -TERM {pid}; wait {pid}")
        log = (self.home / ".daemon.log").read_text()
        assert code == 0, f"the daemon ended with {code}: {printed}\n{log}"
        assert "Traceback" not in log, log
