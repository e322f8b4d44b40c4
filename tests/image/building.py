"""The image, built where there is no registry to fetch a base from: debootstrap makes the base, buildah the image.

Everything is in one folder: storage, base, image. Nothing of it is left when the folder is closed.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TOOLS = ("buildah", "debootstrap", "chroot", "unshare", "nsenter", "mount")
SUITE = "bookworm"  # its Python is the 3.11 of the official base
CANARY = "nothing-of-the-pip-settings-stays"
"""Stands in the pip.conf that the build is given."""

# Debian's mirrors are slow at times; the image is built from what is here, and from wheels.
BASE_SECONDS = 3_600
BUILD_SECONDS = 1_800

_NEEDED = ("python3", "ca-certificates")
_NEEDED_TO_BUILD = ("python3-venv", "binutils")


def missing() -> str | None:
    """Why an image cannot be built here, if it cannot."""
    if os.geteuid() != 0:
        return "only root can make a base with debootstrap"
    if absent := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"not here, and not to be installed: {', '.join(absent)}"
    return None


@dataclass(frozen=True)
class Image:
    """A built image. `files` is its root file system, mounted; `config` what stands in it for whoever runs it."""

    files: Path
    config: Mapping[str, Any]
    description: str
    """All that the image says of itself, its history included: JSON."""
    reported: str
    """What the builder printed."""


@contextmanager
def built(folder: Path) -> Generator[Image, None, None]:
    tools = _Tools(folder)
    try:
        tools.make_bases()
        yield tools.build()
    finally:
        tools.clean()


class _Tools:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
        # Overlays are quicker, where the kernel and the file system below have them.
        for driver in ("overlay", "vfs"):
            storage = folder / driver
            configuration = folder / f"{driver}.conf"
            configuration.write_text(
                f'[storage]\ndriver = "{driver}"\ngraphroot = "{storage}/graph"\nrunroot = "{storage}/run"\n'
            )
            self._environment["CONTAINERS_STORAGE_CONF"] = str(configuration)
            self._environment["STORAGE_DRIVER"] = driver
            if subprocess.run(["buildah", "info"], env=self._environment, capture_output=True).returncode == 0:
                break

    def make_bases(self) -> None:
        """Two: one to build on, with what only a build needs, and one without it for the result."""
        base = self._folder / "base"
        include = f"--include={','.join(_NEEDED)}"
        self._run("debootstrap", "--variant=minbase", include, SUITE, str(base), seconds=BASE_SECONDS)
        _clean(base)
        self._commit(base, "base")
        shutil.copyfile("/etc/resolv.conf", base / "etc" / "resolv.conf")
        self._run("chroot", str(base), "apt-get", "-qq", "update")
        install = ("install", "--yes", "--no-install-recommends")
        self._run(
            *("chroot", str(base), "apt-get", "-qq", *install, *_NEEDED_TO_BUILD),
            seconds=BASE_SECONDS,
            DEBIAN_FRONTEND="noninteractive",
        )
        _clean(base)
        self._commit(base, "base-build")
        shutil.rmtree(base)

    def build(self) -> Image:
        settings = pip_settings()
        conf = self._folder / "pip.conf"
        secrets = {"PIP_CONF": str(conf)}
        if authority := settings.pop("cert", None):
            secrets["CA_FILE"] = authority
            settings["cert"] = "/run/secrets/ca.pem"
        conf.write_text("\n".join([f"# {CANARY}", "[global]", *(f"{k} = {v}" for k, v in settings.items()), ""]))
        reported = self._run(
            str(ROOT / ".ci" / "image" / "build"),
            **{"IMAGE_BUILDER": "buildah", "IMAGE": "reposync", "BASE": "localhost/base"},
            **{"BUILD_BASE": "localhost/base-build"},
            **secrets,
        )
        conf.unlink()
        description = self._run("buildah", "inspect", "--type", "image", "reposync")
        files = Path(self._run("buildah", "mount", self._run("buildah", "from", "reposync")))
        return Image(files, json.loads(description)["Docker"]["config"], description, reported)

    def clean(self) -> None:
        if shutil.which("buildah"):
            subprocess.run(["buildah", "rm", "--all"], env=self._environment, capture_output=True)
            subprocess.run(["buildah", "rmi", "--all", "--force"], env=self._environment, capture_output=True)
        for driver in ("overlay", "vfs"):
            # Storage that is its own mount, to keep it private.
            subprocess.run(["umount", "--recursive", self._folder / driver / "graph" / driver], capture_output=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _commit(self, files: Path, name: str) -> None:
        container = self._run("buildah", "from", "scratch")
        mounted = self._run("buildah", "mount", container)
        self._run("cp", "--archive", f"{files}/.", mounted)
        self._run("buildah", "umount", container)
        self._run("buildah", "commit", "--quiet", "--rm", container, name)

    def _run(self, *command: str, seconds: float = BUILD_SECONDS, **environment: str) -> str:
        done = subprocess.run(
            command, env=self._environment | environment, capture_output=True, text=True, timeout=seconds, check=False
        )
        assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout.strip()


def _clean(base: Path) -> None:
    for leftovers in ("var/cache/apt", "var/lib/apt/lists", "var/log"):
        shutil.rmtree(base / leftovers)
        (base / leftovers).mkdir()


def pip_settings() -> dict[str, str]:
    """The settings that pip has here, whether from files or from the environment, but for folders of this machine."""
    command: Sequence[str] = (sys.executable, "-m", "pip", "config", "list")
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    settings: dict[str, str] = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        # From the least to the most important, as pip reads them.
        section, _, key = name.rpartition(".")
        if section not in ("global", "install", ":env:"):
            continue
        words = str(ast.literal_eval(value)).split()
        if key not in ("cert", "client-cert"):
            words = [word for word in words if not word.startswith(("/", "file:"))]
        if words:
            settings[key] = " ".join(words)
    return settings
