"""What a node would start from the rendered documents, started here: the arguments, variables and volumes of the pods,
and the probes as a node asks them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.fixtures.chart import Rendered, render, together
from tests.fixtures.pods import until
from tests.unit.chart.matrix import DATABASE, INSTALLATIONS

POD_IP = "10.244.3.17"
# None of it can be had here: a namespace of its own, a user of its own, a root file system that is read-only.
REGISTRY: dict[str, Any] = {
    "embedding": {"provider": "none"},
    "http": {"root_path": "/reposync", "allowed_hosts": ["tools.example.com"], "metrics": "token"},
}


@dataclass
class Node:
    """Starts the containers of one rendered release. Paths in a pod are folders below `root`."""

    root: Path
    rendered: Rendered
    secrets: dict[tuple[str, str], str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        for each in self.rendered.all("Secret"):
            for key, value in self.rendered.secrets().items():
                self.secrets[each["metadata"]["name"], key] = value

    def mount_registry(self, text: str) -> None:
        """As the kubelet does: a folder a version, and a link that is swapped."""
        folder = self._at("/etc/reposync/registry")
        folder.mkdir(parents=True, exist_ok=True)
        version = folder / f"..{time.time_ns()}"
        version.mkdir()
        (version / "repositories.yaml").write_text(text)
        (folder / "..new").symlink_to(version.name)
        (folder / "..new").rename(folder / "..data")
        with contextlib.suppress(FileExistsError):
            (folder / "repositories.yaml").symlink_to("..data/repositories.yaml")

    def start(self, container: dict[str, Any]) -> subprocess.Popen[bytes]:
        for mount in container["volumeMounts"]:
            self._at(mount["mountPath"]).mkdir(parents=True, exist_ok=True)
        environment = {each["name"]: self._value(each) for each in container["env"]}
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        # What the image sets, and the folder that is its /tmp.
        image = {"HOME": str(self._at("/var/lib/reposync")), "TMPDIR": str(self._at("/tmp"))}
        with (self.root / "out").open("ab") as out, (self.root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "reposync", *container["args"]],
                env={**kept, **image, "REPOSYNC_ENGINE_IDLE_SECONDS": "20", **environment},
                cwd=self.root,
                stdout=out,
                stderr=log,
            )
        return self._process

    def log(self) -> str:
        return (self.root / "log").read_text()

    def probe(self, container: dict[str, Any], name: str) -> int | None:
        """The status that a node sees, which asks by the pod's address; None for no answer."""
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        asked = container[name]["httpGet"]
        port = ports[asked["port"]]
        with contextlib.suppress(httpx.TransportError):
            address = f"http://127.0.0.1:{port}{asked['path']}"
            return httpx.get(address, headers={"Host": f"{POD_IP}:{port}"}, timeout=5).status_code
        return None

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for record in self.root.rglob("engine.json"):
            if pid := json.loads(record.read_text()).get("pid"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)

    def _at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def _value(self, variable: dict[str, Any]) -> str:
        if "value" in variable:
            value = variable["value"]
            return str(self._at(value)) if value.startswith("/") else value
        source = variable["valueFrom"]
        if "fieldRef" in source:
            assert source["fieldRef"]["fieldPath"] == "metadata.name"
            return "search-reposync-7d9c-x2v"
        named = source["secretKeyRef"]
        return self.secrets[named["name"], named["key"]]


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Nobody who asks for any free port gets this one, and the program, which asks for it by its number, does."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("0.0.0.0", 0))
        yield int(reserved.getsockname()[1])


def test_a_rendered_pod_starts_answers_its_probes_follows_its_registry_and_ends(tmp_path: Path):
    with reserved_port() as port:
        values = {"server": {"port": port}, "registry": REGISTRY}
        rendered = render(values)
        node, container = Node(tmp_path, rendered), rendered.container
        node.mount_registry(rendered.registry)
        process = node.start(container)
        try:
            ready = container["readinessProbe"]
            until(lambda: node.probe(container, "startupProbe") == 200, 60, node.log)
            until(lambda: node.probe(container, "readinessProbe") == 200, 60, node.log)
            assert node.probe(container, "livenessProbe") == 200
            assert ready["httpGet"]["path"] == "/readyz"

            # From elsewhere it answers to its own name, and to who has a token of the chart's Secret.
            address, secrets = f"http://127.0.0.1:{port}", rendered.secrets()
            host = {"Host": "tools.example.com"}
            listing = f"{address}/reposync/api/v1/repositories"
            assert httpx.get(listing, headers=host).status_code == 401
            operate = {**host, "Authorization": f"Bearer {secrets['operate']}"}
            assert httpx.get(listing, headers=operate).json()["items"] == []
            scrape = {"Host": f"{POD_IP}:{port}", "Authorization": f"Bearer {secrets['read']}"}
            assert "reposync_build_info" in httpx.get(f"{address}/metrics", headers=scrape).text
            assert httpx.get(f"{address}/metrics", headers={"Host": f"{POD_IP}:{port}"}).status_code == 401

            handbook = {"repositories": [{"name": "handbook", "path": str(tmp_path / "no-such"), "schedule": "yearly"}]}
            changed = render(together(values, {"registry": handbook}))
            assert changed.pod == rendered.pod, "no new pod for this"
            node.mount_registry(changed.registry)

            def names() -> list[str]:
                return [each["name"] for each in httpx.get(listing, headers=operate).json()["items"]]

            until(lambda: names() == ["handbook"], 20, node.log)
            assert process.poll() is None

            process.send_signal(signal.SIGTERM)
            assert process.wait(rendered.pod["terminationGracePeriodSeconds"]) == 0, node.log()
            assert not any(secret in node.log() for secret in secrets.values())
            assert all(json.loads(line)["pod"] == "search-reposync-7d9c-x2v" for line in node.log().splitlines())
        finally:
            node.close()


def test_the_program_itself_finds_nothing_wrong_with_a_rendered_registry(tmp_path: Path):
    rendered = render(INSTALLATIONS["many pods, everything"])
    node = Node(tmp_path, rendered, dict.fromkeys([("gitlab", "token")], "a-value-that-is-long-enough"))
    node.mount_registry(rendered.registry)
    checking = {**rendered.container, "args": ["config", "check"]}
    checking["env"] = [each for each in checking["env"] if each["name"] in ("REPOSYNC_CONFIG", "GITLAB_TOKEN")]

    assert node.start(checking).wait(60) == 0, node.log()
    assert (tmp_path / "out").read_text().startswith("ok: 1 repository, 1 GitLab server in ")
    assert node.log() == ""


def test_the_rendered_migration_brings_the_schema_up_to_date_again_and_again(tmp_path: Path):
    rendered = render(DATABASE)
    database = tmp_path / "database.db"
    node = Node(tmp_path, rendered, {("postgresql", "uri"): f"sqlite:///{database}"})
    (container,) = rendered.one("Job")["spec"]["template"]["spec"]["containers"]
    try:
        for _ in range(2):
            assert node.start(container).wait(60) == 0, node.log()
        assert database.stat().st_size > 0
        said = (tmp_path / "out").read_text().splitlines()
        assert said[0].startswith("empty -> ")
        assert said[1].endswith("(as it was)")
    finally:
        node.close()
