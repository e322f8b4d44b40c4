"""`python sbom.py PYTHON BASE OUTPUT`: the bill of materials of the image, CycloneDX 1.6, made of what is there.

The Python packages of the environment of PYTHON (cyclonedx-py looks into it), in each of them what its wheel says that
it has compiled in (PEP 770: crates, C libraries), the packages of the base's file system BASE (dpkg), its Python, and
the init that is copied in.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

Component = dict[str, Any]


def main() -> None:
    python, base, output = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--sv", "1.6", python]
    bom = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)  # noqa: S603
    (packages,) = python.parent.parent.glob("lib/python3.*/site-packages")
    inside = compiled_in(packages)
    for component in bom["components"]:
        if parts := inside.pop(normal(component["name"]), None):
            component["components"] = parts
    if inside:
        sys.exit(f"sbom: no component for what is in {', '.join(inside)}")
    # The program is what the bill is about, and not one of its own parts.
    (program,) = (each for each in bom["components"] if each["name"] == "reposync")
    bom["components"].remove(program)
    bom["metadata"]["component"] = program | {"type": "application"}
    bom["components"] += [interpreter(), init(), *debian_packages(base)]
    text = json.dumps(bom, indent=1, sort_keys=True)
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        sys.exit(f"sbom: {error}")
    output.write_text(text)
    sys.stdout.write(f"sbom: {len(bom['components'])} components\n")


def normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def compiled_in(packages: Path) -> dict[str, list[Component]]:
    """By the package's name."""
    found: dict[str, dict[str, Component]] = {}
    for path in sorted(packages.glob("*.dist-info/sboms/*.json")):
        name = normal(path.parent.parent.name.partition("-")[0])
        for each in json.loads(path.read_bytes()).get("components", ()):
            part = {key: each[key] for key in ("type", "name", "version", "purl") if key in each}
            if normal(part["name"]) != name:
                found.setdefault(name, {})[json.dumps(part, sort_keys=True)] = part
    return {name: list(parts.values()) for name, parts in found.items()}


def interpreter() -> Component:
    version = platform.python_version()
    purl = PackageURL("generic", None, "python", version)
    return {"type": "platform", "bom-ref": str(purl), "name": "python", "version": version, "purl": str(purl)}


def init() -> Component:
    """The first process: one file from a wheel that this script's own environment has."""
    version = metadata.version("dumb-init")
    purl = str(PackageURL("pypi", None, "dumb-init", version))
    return {"type": "application", "bom-ref": purl, "name": "dumb-init", "version": version, "purl": purl}


def debian_packages(base: Path) -> list[Component]:
    status = base / "var/lib/dpkg/status"
    if not status.is_file():
        sys.exit(f"sbom: {status} is missing: the packages of this base are not known")
    release = dict(line.split("=", 1) for line in (base / "etc/os-release").read_text().splitlines() if "=" in line)
    distribution = f"{release['ID']}-{release['VERSION_ID']}".replace('"', "")
    components = []
    for paragraph in status.read_text().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Status") != "install ok installed":
            continue
        name, version = fields["Package"], fields["Version"]
        qualifiers = {"arch": fields["Architecture"], "distro": distribution}
        purl = str(PackageURL("deb", release["ID"].strip('"'), name, version, qualifiers))
        components.append({"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl})
    return components


if __name__ == "__main__":
    main()
