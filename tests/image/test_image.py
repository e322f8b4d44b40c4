"""The image as those who run it meet it: a container of it, read-only, without network, as a user without a name."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from collections.abc import Generator
from importlib.metadata import distributions
from pathlib import Path

import pytest

from tests.fixtures.pods import until
from tests.fixtures.repositories import GitRepository
from tests.image.building import CANARY, Image
from tests.image.container import STATE, Container

pytestmark = pytest.mark.timeout(900, func_only=True)  # bases and image have time limits of their own

STOP_SECONDS = 30
TOKEN = "read:0123456789abcdef0123456789abcdef"
ENVIRONMENT = "opt/reposync"
OF_OPENSHIFT = (1_000_660_000, 0)


@pytest.fixture
def repository(tmp_path: Path) -> GitRepository:
    repository = GitRepository.create(tmp_path / "served" / "payments.git")
    repository.commit(
        {
            "sessions.py": b"def remove_expired_sessions(now):\n    return [s for s in SESSIONS if s.ends > now]\n",
            "README.md": b"# Payments\n\nTakes money.\n",
        }
    )
    return repository


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    path = tmp_path / "registry" / "repositories.yaml"
    path.parent.mkdir()
    path.write_text(
        "defaults: {timezone: Europe/Berlin, schedule: 'daily at 03:00'}\n"
        "repositories:\n  - {name: payments, path: /srv/payments.git}\n"
    )
    return path


@pytest.fixture
def daemon(image: Image, tmp_path: Path, repository: GitRepository, registry: Path) -> Generator[Container, None, None]:
    """What the image runs where it is reported nothing, but for the mounts and the token."""
    mounts = {"etc/reposync": registry.parent, "srv": repository.path.parent}
    with Container(image, tmp_path, mounts=mounts, environment={"REPOSYNC_API_TOKEN": TOKEN}) as container:
        yield container.starts()


def healthy(container: Container) -> bool:
    """By the image's own health check."""
    kind, *command = container.image.config["Healthcheck"]["Test"]
    assert kind == "CMD"
    return container.runs(*command).returncode == 0


def packages(image: Image) -> Path:
    (found,) = (image.files / ENVIRONMENT).glob("lib/python3.*/site-packages")
    return found


def test_its_entry_point_is_the_program_of_the_version_on_its_label(image: Image, tmp_path: Path):
    with Container(image, tmp_path) as container:
        said = container.types("version", "--json")
    assert json.loads(said)["reposync"] == image.config["Labels"]["org.opencontainers.image.version"]


def test_config_check_reads_the_registry_where_it_is_mounted(image: Image, tmp_path: Path, registry: Path):
    mounts = {"etc/reposync": registry.parent}
    with Container(image, tmp_path, mounts=mounts) as container:
        assert "/etc/reposync/repositories.yaml" in container.types("config", "check")
    registry.write_text("repositories: [{nam: x}]\n")
    with Container(image, tmp_path, mounts=mounts) as container:
        assert "repositories.yaml:1" in container.types("config", "check", exit_code=2)


@pytest.mark.parametrize(
    ("user", "environment"),
    [pytest.param(None, {}, id="as it is"), pytest.param(OF_OPENSHIFT, {"HOME": None}, id="any user, no HOME")],
)
def test_a_repository_is_synced_and_found_without_network_on_a_read_only_root(
    image: Image, tmp_path: Path, repository: GitRepository, user, environment
):
    kept = {"user": user, "environment": environment, "mounts": {"srv": repository.path.parent}}
    with Container(image, tmp_path, **kept) as container:
        container.types("sync", "/srv/payments.git")
    # Another container on the same volume: what the first one wrote is there, and the model is in the image.
    with Container(image, tmp_path, **kept) as container:
        (first, *_) = json.loads(container.types("search", "where do sessions end", "--json"))["items"]
    assert first["path"] == "sessions.py"


def test_the_daemon_gets_healthy_and_stops_in_order(daemon: Container, image: Image):
    until(lambda: healthy(daemon), details=lambda: daemon.said)
    until(lambda: "payments" in daemon.runs("reposync", "history", "--status", "completed").stdout)

    assert daemon.signals(signal.SIGTERM).ends(timeout_seconds=STOP_SECONDS) == 0, daemon.said
    assert "Traceback" not in daemon.said


def test_nobody_in_it_can_change_the_program(image: Image):
    uid, gid = (int(number) for number in image.config["User"].split(":"))
    assert uid >= 1000
    assert gid == 0  # as OpenShift gives it
    for path in (image.files / ENVIRONMENT).rglob("*"):
        found = path.lstat()
        assert (found.st_uid, found.st_gid) == (0, 0), path
        assert path.is_symlink() or not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH | stat.S_ISUID), path
    volume = (image.files / STATE).stat()
    assert (volume.st_uid, volume.st_gid, stat.S_IMODE(volume.st_mode)) == (uid, gid, 0o770)


def test_what_built_it_is_not_in_it(image: Image):
    everything = list(walk(image.files))
    names = {path.name for path in everything}
    commands = {path.name for path in everything if path.parent.name in ("bin", "sbin", "libexec")}
    for tool in ("gcc", "cc", "g++", "clang", "rustc", "ld", "as", "strip", "make", "pip", "pip3", "conda", "uv"):
        assert tool not in commands
    assert not names & {"pip", "ensurepip", "setuptools", "cc1", "x86_64-linux-gnu-gcc"}
    assert not {name for name in names if name.startswith("pip-") or name.endswith((".whl", ".deb", ".orig"))}
    assert not (image.files / "root" / ".cache").exists()
    assert not (image.files / "src").exists()
    assert {path.name for path in (image.files / ENVIRONMENT / "bin").iterdir()} == {
        *("python", "python3", f"python3.{sys.version_info.minor}"),
        *("dumb-init", "reposync", "reposync-health"),
    }
    assert sorted(path.name for path in (image.files / ENVIRONMENT).iterdir() if path.name != "lib64") == [
        *("bin", "include", "lib", "pyvenv.cfg", "sbom.cdx.json")
    ]


def test_the_settings_of_the_build_left_no_trace(image: Image):
    assert CANARY not in image.description
    for path in walk(image.files):
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 1_000_000:
            assert CANARY.encode() not in path.read_bytes(), path
    assert not list((image.files / "run").glob("secrets/*"))


def test_its_bill_of_materials_names_what_is_in_it_and_nothing_else(image: Image):
    bill = json.loads((image.files / ENVIRONMENT / "sbom.cdx.json").read_bytes())
    program = bill["metadata"]["component"]
    listed = {(each["name"], each["version"]) for each in bill["components"] if each["purl"].startswith("pkg:pypi/")}
    there = {(each.metadata["Name"], each.version) for each in distributions(path=[str(packages(image))])}
    assert listed - {("dumb-init", "1.2.5.post1")} | {(program["name"], program["version"])} == there
    status = (image.files / "var/lib/dpkg/status").read_text()
    installed = status.count("Status: install ok installed")
    assert installed == len([each for each in bill["components"] if each["purl"].startswith("pkg:deb/debian/")])
    (engine,) = (each for each in bill["components"] if each["name"] == "qdrant-edge-py")
    assert any(each["purl"].startswith("pkg:cargo/") for each in engine["components"])


def walk(folder: Path) -> Generator[Path, None, None]:
    for here, folders, names in os.walk(folder):
        for name in [*folders, *names]:
            yield Path(here) / name
