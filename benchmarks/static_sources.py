"""Packages of public registries: pinned by version and SHA-256, downloaded by the registry's own client, read without
being unpacked or built.

Addresses are those that the clients are configured with (pip, npm, go, cargo, Maven, apt).
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

_PERMISSIVE: Final = (
    "0BSD Apache-2.0 BSD-2-Clause BSD-3-Clause BSD-4-Clause BSL-1.0 CC0-1.0 HPND ISC MIT MIT-0 NCSA"
    " PHP-3.01 PostgreSQL PSF-2.0 Python-2.0 TCL Unlicense WTFPL Zlib curl"
)
PERMISSIVE: Final = frozenset(_PERMISSIVE.split())
_LARGEST_MEMBER_BYTES: Final = 300_000
_NOT_SOURCE: Final = re.compile(
    r"(^|/)(vendor|_vendor|vendored|node_modules|third[-_]?party|thirdparty|externals?|extern|deps|bundled|testdata"
    r"|tests?|__tests__|specs?|testing|fixtures|generated|debian|site-packages)/"
    r"|(^|/)(test_|conftest|zz_generated)|[._-](test|spec)s?\.|_pb2|\.pb\.|\.d\.[mc]?ts$|[.-]min\.|\.umd\.|\.iife\."
    r"|bundle\.js$",
    re.I,
)
_LICENCE_FILE: Final = re.compile(r"(^|/)([a-z-]*licen[sc]e|copying)[^/]*$", re.I)
_LICENCE_FOLDER: Final = re.compile(r"META-INF|\.dist-info(/licenses)?$|@v[^/]+$")
_COPYLEFT: Final = re.compile(
    r"GNU (?:LESSER |LIBRARY |AFFERO )?GENERAL PUBLIC|\bA?L?GPL|Mozilla Public|Eclipse Public|CDDL|Server Side Public"
    r"|Business Source|Elastic License|Commons Clause|European Union Public",
    re.I,
)


class InvalidPackage(Exception):
    """The message names the package."""


@dataclass(frozen=True)
class Package:
    """`language`: the one of most of its files."""

    registry: str
    name: str
    version: str
    sha256: str
    licence: str
    language: str

    def __str__(self) -> str:
        return f"{self.registry} {self.name} {self.version}"


def read_list(file: Path) -> list[Package]:
    """Raises InvalidPackage."""
    packages = [Package(*line.split("\t")) for line in file.read_text("utf-8").splitlines()[1:]]
    for package in packages:
        if not is_permissive(package.licence):
            raise InvalidPackage(f"{package}: the licence {package.licence} is not known to be permissive.")
    return packages


def is_permissive(licence: str) -> bool:
    """An SPDX expression without parentheses: one of its alternatives at least."""
    return any(set(each.split(" AND ")) <= PERMISSIVE for each in licence.split(" OR "))


def source_files(archive: Path, suffixes: frozenset[str], skipped_parts: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Paths and texts of an archive's source files, by path. Files under a copyleft licence, vendored files, and those
    with one of `skipped_parts` in their path are left out."""
    for path, content in sorted(_members(archive, lambda path: _is_source(path, suffixes, skipped_parts))):
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError:
            continue
        if not _COPYLEFT.search(text, 0, 3_000):
            yield path, text


def _is_source(path: str, suffixes: frozenset[str], skipped_parts: frozenset[str]) -> bool:
    inner = path.partition("/")[2] or path
    return (
        path.rpartition(".")[2] in suffixes
        and not _NOT_SOURCE.search(inner)
        and skipped_parts.isdisjoint(re.split(r"[/.]", inner.lower()))
    )


def licence_texts(archive: Path) -> list[str]:
    """Licence files at the top of an archive, below META-INF or *.dist-info, or of a Go module."""

    def is_licence(path: str) -> bool:
        folder = path.rpartition("/")[0]
        return bool(_LICENCE_FILE.search(path)) and ("/" not in folder or bool(_LICENCE_FOLDER.search(folder)))

    return [content.decode("utf-8", "replace") for _, content in sorted(_members(archive, is_licence))]


def _members(archive: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Regular files of at most 300 kB. Nothing is written: a path in an archive names no file here."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as files:
            for entry in files.infolist():
                if entry.file_size <= _LARGEST_MEMBER_BYTES and not entry.is_dir() and wanted(entry.filename):
                    yield entry.filename, files.read(entry)
        return
    with tarfile.open(archive) as files:
        for member in files:
            if member.isfile() and member.size <= _LARGEST_MEMBER_BYTES and wanted(member.name):
                content = files.extractfile(member)
                assert content is not None
                yield member.name, content.read()


# Downloads ----------------------------------------------------------------------------------------------------------


def fetch(packages: Sequence[Package], folder: Path) -> dict[Package, Path]:
    """The archive of each package, named by its SHA-256. What is in `folder` already is not downloaded again. Raises
    InvalidPackage if a registry has no archive with the checksum of the list."""
    archives = {package: folder / package.sha256 for package in packages}
    for registry, download in _CLIENTS.items():
        missing = [package for package, file in archives.items() if package.registry == registry and not file.exists()]
        for first in range(0, len(missing), _AT_ONCE[registry]):
            with tempfile.TemporaryDirectory(dir=folder) as name:
                output = download(missing[first : first + _AT_ONCE[registry]], Path(name))
                _keep(Path(name), {package.sha256 for package in missing}, folder)
            for package in missing[first : first + _AT_ONCE[registry]]:
                if not archives[package].exists():
                    raise InvalidPackage(f"{package}: no archive with the checksum of the list. {output[-2000:]}")
    return archives


def _keep(downloads: Path, wanted: set[str], folder: Path) -> None:
    for file in sorted(downloads.rglob("*")):
        if file.is_file() and not file.is_symlink() and file.name.endswith(_ARCHIVES):
            with file.open("rb") as content:
                checksum = hashlib.file_digest(content, "sha256").hexdigest()
            if checksum in wanted:
                file.replace(folder / checksum)


_PURE: Final = ("--only-binary=:all:", "--platform=any", "--implementation=py", "--abi=none", "--python-version=3.12")


def _pypi(packages: Sequence[Package], folder: Path) -> str:
    """Wheels without compiled code: pip builds an sdist to read its metadata."""
    pins = "".join(f"{each.name}=={each.version} --hash=sha256:{each.sha256}\n" for each in packages)
    (folder / "pins.txt").write_text(pins)
    return _run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--no-cache-dir",
            *_PURE,
            "-d",
            ".",
            "-r",
            "pins.txt",
        ],
        folder,
    )


def _npm(packages: Sequence[Package], folder: Path) -> str:
    return _run(["npm", "pack", "--ignore-scripts", *(f"{each.name}@{each.version}" for each in packages)], folder)


def _go(packages: Sequence[Package], folder: Path) -> str:
    environment = {"GOMODCACHE": str(folder / "modules"), "GOFLAGS": "-modcacherw", "GOTOOLCHAIN": "local"}
    return _run(["go", "mod", "download", *(f"{each.name}@{each.version}" for each in packages)], folder, environment)


def _crates(packages: Sequence[Package], folder: Path) -> str:
    """A project that needs all of them: cargo has no command to download one crate."""
    pins = "".join(f'{each.name} = {{version = "={each.version}", default-features = false}}\n' for each in packages)
    head = (
        '[package]\nname = "sources"\nversion = "0.0.0"\nedition = "2021"\n[lib]\npath = "Cargo.toml"\n[dependencies]\n'
    )
    (folder / "Cargo.toml").write_text(head + pins)
    return _run(["cargo", "fetch"], folder, _cargo_home(folder))


def _cargo_home(folder: Path) -> dict[str, str]:
    """Apart from the user's, with the user's configuration of the registry."""
    home = folder / "cargo"
    home.mkdir()
    for name in ("config.toml", "config", "credentials.toml"):
        configured = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo") / name
        if configured.is_file():
            (home / name).symlink_to(configured)
    return {"CARGO_HOME": str(home)}


def _maven(packages: Sequence[Package], folder: Path) -> str:
    """Raises InvalidPackage if a POM, or a parent of it, does not state the licence of the list."""
    names = [
        "<groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>".format(
            *map(escape, (*each.name.split(":"), each.version))
        )
        for each in packages
    ]
    items = "".join(f"<artifactItem>{name}<classifier>sources</classifier></artifactItem>" for name in names)
    alone = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    poms = "".join(f"<dependency>{name}<type>pom</type>{alone}</dependency>" for name in names)
    (folder / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>none</groupId><artifactId>sources</artifactId>"
        f"<version>1</version><packaging>pom</packaging><dependencies>{poms}</dependencies><build><plugins><plugin>"
        "<groupId>org.apache.maven.plugins</groupId><artifactId>maven-dependency-plugin</artifactId><configuration>"
        f"<artifactItems>{items}</artifactItems><outputDirectory>archives</outputDirectory>"
        "<prependGroupId>true</prependGroupId></configuration></plugin></plugins></build></project>"
    )
    report = folder / "licences.txt"
    printed = _run(
        [
            "mvn",
            "-q",
            "-B",
            f"-Dmaven.repo.local={folder / 'repository'}",
            f"-Dlicense.outputDirectory={folder}",
            f"-Dlicense.thirdPartyFilename={report.name}",
            "-Dlicense.acceptPomPackaging=true",
            "dependency:copy",
            "org.codehaus.mojo:license-maven-plugin:2.5.0:add-third-party",
        ],
        folder,
    )
    if not report.exists():
        raise InvalidPackage(f"maven: no licences could be read. {printed[-2000:]}")
    check_maven_licences(packages, report.read_text("utf-8"))
    return printed


def check_maven_licences(packages: Sequence[Package], report: str) -> None:
    """`report`: what license-maven-plugin writes, a line for each artifact, `(LICENCE) NAME (GROUP:ARTIFACT:VERSION -
    URL)`, with one of these licences or several to choose from. Raises InvalidPackage."""
    stated = {found["artifact"]: found["licences"] for found in _REPORTED.finditer(report)}
    for package in packages:
        names = re.findall(r"\(([^()]*)\)", stated.get(f"{package.name}:{package.version}", ""))
        known = [spdx for name in names for pattern, spdx in _MAVEN_NAMES if pattern.fullmatch(name)]
        if not set(package.licence.split(" OR ")) <= set(known):
            raise InvalidPackage(f"{package}: its POM does not state {package.licence}, but {names or 'no licence'}.")


_REPORTED: Final = re.compile(r"^ *(?P<licences>(?:\([^()\n]*\) ?)+).* \((?P<artifact>[^\s()]+) - [^()\n]*\)$", re.M)
_MAVEN_NAMES: Final = [
    (re.compile(pattern, re.I), spdx)
    for pattern, spdx in (
        (r"(the )?(apache|asf|asl)\b.* ?v?2(\.0)?|apache-2\.0", "Apache-2.0"),
        (r"(the )?mit( licen[sc]e)?", "MIT"),
        (r"(the )?(bsd-3-clause|3-clause bsd)( licen[sc]e)?", "BSD-3-Clause"),
        (r"(the )?(bsd-2-clause|(2|two)-clause bsd)(-style)?( licen[sc]e)?", "BSD-2-Clause"),
    )
]


def _debian(packages: Sequence[Package], folder: Path) -> str:
    """From the mirror of this machine, which must be a Debian of the release of the list. Its source indexes are read
    into `folder`, so that the machine's own configuration stays as it is."""
    parts = folder / "sources"
    parts.mkdir()
    for file in Path("/etc/apt/sources.list.d").glob("*.sources"):
        (parts / file.name).write_text(re.sub(r"^Types:.*$", "Types: deb-src", file.read_text(), flags=re.M))
    lines = Path("/etc/apt/sources.list")
    if lines.exists():
        (parts / "main.list").write_text(re.sub(r"^deb ", "deb-src ", lines.read_text(), flags=re.M))
    (folder / "lists" / "partial").mkdir(parents=True)
    options = {
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": parts,
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache": folder,
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-q", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
    updated = _run([*apt, "update"], folder)
    pins = [f"{each.name}={each.version}" for each in packages]
    return updated + _run([*apt, "source", "--download-only", "--only-source", "--tar-only", *pins], folder)


def _run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    """What it printed. A failure shows in the archives that are missing."""
    done = subprocess.run(
        command, cwd=folder, env=os.environ | (environment or {}), capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


_CLIENTS: Final[dict[str, Callable[[Sequence[Package], Path], str]]] = {
    "pypi": _pypi,
    "npm": _npm,
    "go": _go,
    "crates": _crates,
    "maven": _maven,
    "debian": _debian,
}
_AT_ONCE: Final = {"pypi": 20, "npm": 20, "go": 8, "crates": 1_000, "maven": 1_000, "debian": 1_000}
_ARCHIVES: Final = (".whl", ".tgz", ".zip", ".crate", ".jar", ".gz", ".xz", ".bz2")
