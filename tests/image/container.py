"""Containers of the built image, as an engine has it run them: the image's entry point, its user and environment, a
read-only root file system with a tmpfs on /tmp, no network but loopback, no capabilities, a volume for the state."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.fixtures.pods import until
from tests.image.building import Image

STATE = "var/lib/reposync"

_INSIDE = Path(__file__).with_name("inside.py")
_NAMESPACES = ("--mount", "--pid", "--net", "--ipc", "--uts")


class Container:
    """Of `image`; what it keeps is in `folder`, its volume too. Use as a context: what still runs then is killed."""

    def __init__(
        self,
        image: Image,
        folder: Path,
        *,
        user: tuple[int, int] | None = None,
        environment: Mapping[str, str | None] | None = None,
        mounts: Mapping[str, Path] | None = None,
        entrypoint: Sequence[str] | None = None,
    ) -> None:
        """`environment`: None takes a variable away. `mounts`: folder in the image to folder here, read-only."""
        self.image = image
        self._entrypoint = list(image.config["Entrypoint"] if entrypoint is None else entrypoint)
        self._process: subprocess.Popen[bytes] | None = None
        name = uuid.uuid4().hex[:8]
        self._log = folder / f"{name}.log"
        self._spec = folder / f"{name}.json"
        root = folder / name
        root.mkdir()
        variables = dict(each.split("=", 1) for each in image.config["Env"]) | dict(environment or {})
        spec = {
            "image": str(image.files),
            "root": str(root),
            "user": user or [int(number) for number in image.config["User"].split(":")],
            "folder": image.config["WorkingDir"],
            "environment": {name: value for name, value in variables.items() if value is not None},
            "mounts": {STATE: (str(_volume(image, folder / "state")), "rw")}
            | {inside: (str(outside), "ro") for inside, outside in (mounts or {}).items()},
        }
        self._spec.write_text(json.dumps(spec))

    def types(self, *words: str, exit_code: int = 0) -> str:
        """Run to the end; what it printed, on both."""
        self.starts(*words)
        assert self.ends(timeout_seconds=120) == exit_code, self.said
        assert "Traceback" not in self.said
        return self.said

    def starts(self, *words: str) -> Self:
        """With the image's default command where there are no words."""
        program = [*self._entrypoint, *(words or self.image.config["Cmd"])]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                ["unshare", *_NAMESPACES, "--fork", "--kill-child", *self._inside("make", *program)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self

    def runs(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A further command inside, as health checks are run."""
        enter = ["nsenter", "--target", str(self._first()), *_NAMESPACES, "--", *self._inside("enter", *command)]
        return subprocess.run(enter, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)

    def signals(self, number: signal.Signals) -> Self:
        """To the first process, as an engine does to stop it."""
        os.kill(self._first(), number)
        return self

    def ends(self, *, timeout_seconds: float) -> int:
        assert self._process is not None
        return self._process.wait(timeout_seconds)

    @property
    def said(self) -> str:
        return self._log.read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            # The kernel drops `--kill-child` when the child changes its user: kill process 1 of the namespace here.
            for first in self._children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(first, signal.SIGKILL)
            self._process.kill()
            self._process.wait()

    def _inside(self, how: str, *program: str) -> list[str]:
        return [sys.executable, str(_INSIDE), how, str(self._spec), *program]

    def _first(self) -> int:
        """Its process 1, by the number it has out here."""

        def inside() -> int | None:
            # Before it has its root it is still this Python.
            return next((each for each in self._children() if Path(f"/proc/{each}/root").readlink() != Path("/")), None)

        return int(until(inside, 30, details=lambda: self.said))

    def _children(self) -> list[int]:
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        with contextlib.suppress(OSError):  # it has ended
            return [int(each) for each in children.read_text().split()]
        return []


def _volume(image: Image, volume: Path) -> Path:
    """With the owner and the mode that the folder has in the image, as engines make a new one."""
    if not volume.exists():
        volume.mkdir()
        found = (image.files / STATE).stat()
        os.chown(volume, found.st_uid, found.st_gid)
        volume.chmod(found.st_mode)
    return volume
