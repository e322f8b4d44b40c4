"""Somebody who types what a page says, in the order in which it stands there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import IO, Any

import httpx
from ruamel.yaml import YAML

from tests.docs.pages import Place
from tests.docs.shell import Typed, as_expected, simple_commands
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.pods import end_engines, until, variables_of
from tests.fixtures.repositories import GitRepository
from tests.fixtures.supervised import free_port
from tests.fixtures.warm_program import CLIENT

# What is typed and run.
RUN = {
    *("reposync", "curl", "export", "unset", "set", ".", "cd", "cp", "rm", "echo", "printf", "openssl", "hostname"),
    *("cat", "date"),
}
# Only recognised: there is no cluster and no engine here, packages and images have tests of their own, targets and
# modules are looked up, and the clients of databases are not installed everywhere.
NOT_RUN = {
    *("kubectl", "helm", "docker", "podman", "buildah", "make", "python", "python3", "pip", "apt-get", "git", "sudo"),
    *("pipx", "uv", "pg_dump", "pg_restore", "psql", "sqlite3", ".venv/bin/pytest"),
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
    _script(folder / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    _script(folder / "claude", "#!/bin/sh\n")  # what it is called with is tested elsewhere
    return folder


def script_name(text: str) -> str:
    """`# search.py` is the first line of such a script."""
    found = re.match(r"# (\w+\.py)\n", text)
    assert found, f"no name in the first line of\n{text}"
    return found[1]


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@dataclass
class Newcomer:
    """`places`: what stands in a page, such as an address, and what is in its place here. `repository`: what `home` is
    a clone of. Every command has a shell of its own, which begins with the folder and the variables that the one before
    left in `_state`."""

    home: Path
    repository: GitRepository
    programs: Path
    environment: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    registry: dict[str, Any] = field(default_factory=dict)
    _scripts: set[str] = field(default_factory=set)
    _daemon: subprocess.Popen[str] | None = None

    def __enter__(self) -> Newcomer:
        self.places |= {f"{host}:8080": f"127.0.0.1:{self.port}" for host in ("localhost", "127.0.0.1")}
        variables = {**variables_of(self.home), "PATH": f"{self.programs}:{os.environ['PATH']}", **self.environment}
        variables.pop("PYTHONPATH", None)
        exports = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
        self._state.write_text("".join([*exports, f"cd {shlex.quote(str(self.home))}\n"]))
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stops_the_daemon()
        finally:
            end_engines(self.home)

    @property
    def _state(self) -> Path:
        return self.home / ".shell"

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

    def writes_script(self, text: str) -> None:
        """Its first line has its name. `python NAME` then runs it."""
        name = script_name(text)
        self._scripts.add(name)
        self.writes(name, text)

    def localised(self, text: str) -> str:
        for shown, here in sorted(self.places.items(), key=lambda place: -len(place[0])):
            text = text.replace(shown, here)
        return text

    # What is typed ---------------------------------------------------------------------------------------------------

    def types(self, command: Typed) -> None:
        """Run it, and compare what it prints with what is shown below it."""
        line = self.localised(command.without_remark)
        if not self._is_run(line):
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

    def _is_run(self, line: str) -> bool:
        commands = list(simple_commands(line))
        if any(words[0] == "python" and words[1:2] and words[1] in self._scripts for words in commands):
            return True
        return not {words[0] for words in commands} & NOT_RUN

    def run(self, line: str) -> tuple[int, str]:
        """The exit code, and what is printed. The person says yes to whatever is asked."""
        # Variables that no shell may set are reported and left out.
        saved = f"{{ declare -p; printf 'cd %q\\n' \"$PWD\"; }} > {shlex.quote(str(self._state))}"
        with self._shell(f"{line}\nended=$?\n{saved}\nexit $ended", subprocess.PIPE) as shell:
            try:
                printed, _ = shell.communicate("y\n" * 9, COMMAND_SECONDS)
            except BaseException:
                os.killpg(shell.pid, signal.SIGKILL)
                raise
        return shell.returncode, printed

    def _shell(self, script: str, out: int | IO[str]) -> subprocess.Popen[str]:
        command = ["bash", "--norc", "--noprofile", "-c", f". {shlex.quote(str(self._state))} 2>/dev/null\n{script}"]
        return subprocess.Popen(
            command, env={}, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip

    def queries(self, text: str, at: Place) -> None:
        """On the database that the commands have made."""
        (path,) = self.home.glob("**/state/reposync/reposync.db")
        with contextlib.closing(sqlite3.connect(path)) as database:
            try:
                database.execute(text)
            except sqlite3.Error as error:
                raise AssertionError(f"{at}: {error}") from error

    def _with_id(self, line: str) -> str:
        """`ID` is the newest run that the command can be for."""
        if not re.search(r"\bID\b", line):
            return line
        words = next(words for words in simple_commands(line) if "ID" in words)
        state = STATES.get(words[2] if len(words) > 2 else "")
        code, printed = self.run("reposync history --json --limit 50")
        assert code == 0, printed
        runs = [run for run in json.loads(printed)["items"] if state is None or run["status"] == state]
        assert runs, f"$ {line}: no run is {state} in\n{printed}"
        return re.sub(r"\bID\b", runs[0]["id"], line)

    # A daemon --------------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def starts_a_daemon(self, line: str = "reposync serve", at: Place | None = None) -> None:
        """It goes on while the next commands are typed. A second one takes the place of the first."""
        self.stops_the_daemon()
        with self._log.open("w") as log:
            served = line.replace("reposync serve", f"exec reposync serve --port {self.port}")
            daemon = self._daemon = self._shell(served, log)

        def is_ready() -> bool:
            assert daemon.poll() is None, f"{at}: $ {line}\n{self._log.read_text()}"
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"{self.url}/readyz", timeout=PATIENCE_SECONDS).status_code == 200
            return False

        until(is_ready, COMMAND_SECONDS, self._log.read_text)

    def stops_the_daemon(self) -> None:
        if self._daemon is None:
            return
        daemon, self._daemon = self._daemon, None
        with daemon:
            daemon.terminate()
            code = daemon.wait(COMMAND_SECONDS)
        log = self._log.read_text()
        assert code == 0 and "Traceback" not in log, f"the daemon ended with {code}:\n{log}"

    @property
    def _log(self) -> Path:
        return self.home / ".daemon.log"
