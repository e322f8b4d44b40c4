"""A Qdrant server or an embedded engine for `benchmarks.vector_search`: started, waited for, and what it uses."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import httpx

from reposync.vectors.embedded import read_record
from tests.fixtures.supervised import free_port

ENGINE = "engine"
"""The host in URLs of the embedded engine."""


class Server:
    """A server of our own, with its storage in `folder`."""

    def __init__(self, binary: Path, folder: Path) -> None:
        self._binary, self._folder = binary.resolve(), folder
        self._ports = [free_port(), free_port()]
        self.url: str | None = f"http://127.0.0.1:{self._ports[0]}"

    def __enter__(self) -> Self:
        settings = {
            "STORAGE__STORAGE_PATH": self._folder / "storage",
            "STORAGE__SNAPSHOTS_PATH": self._folder / "snapshots",
            "SERVICE__HOST": "127.0.0.1",
            "SERVICE__HTTP_PORT": self._ports[0],
            "SERVICE__GRPC_PORT": self._ports[1],
            "TELEMETRY_DISABLED": "true",
        }
        variables = {f"QDRANT__{name}": str(value) for name, value in settings.items()}
        with (self._folder / "qdrant.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binary], cwd=self._folder, env=os.environ | variables, stdout=log, stderr=log
            )
        return self

    @property
    def pid(self) -> int:
        return self._process.pid

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def disk_bytes(self) -> int:
        return sum(each.lstat().st_blocks * 512 for each in (self._folder / "storage").rglob("*"))


class Engine(Server):
    """An embedded engine; `folder` is the state directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = None

    def __enter__(self) -> Self:
        index = self._folder / "index"
        index.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "reposync.vectors.engine", str(index), "--idle", "0"]
        with (self._folder / "engine.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        # Otherwise the first client starts one of its own.
        while (record := read_record(index)) is None or record["pid"] != self.pid:
            if self._process.poll() is not None:
                raise SystemExit(f"The engine ended: {self._folder / 'engine.log'} says why.")
            time.sleep(0.1)
        return self

    def disk_bytes(self) -> int:
        return sum(each.lstat().st_blocks * 512 for each in (self._folder / "index").rglob("*"))


async def until_ready(client: httpx.AsyncClient) -> str:
    """The server's version. Raises what the last of 60 attempts raised."""
    if client.base_url.host == ENGINE:
        return f"Edge {version('qdrant-edge-py')}"  # the transport starts and awaits it
    for attempt in itertools.count(1):
        try:
            return str((await client.get("/")).json()["version"])
        except httpx.TransportError:
            if attempt == 60:
                raise
            await asyncio.sleep(0.5)
    raise AssertionError("the last attempt returns or raises")


async def until_green(client: httpx.AsyncClient, collection: str) -> dict[str, Any]:
    """The collection's description, once its optimizers are idle: three times in a row, since one may start late."""
    green = 0
    while True:
        with contextlib.suppress(httpx.TransportError):  # a server that starts
            answer = await client.get(f"/collections/{collection}")
            found: dict[str, Any] = answer.json().get("result") or {}
            green = green + 1 if found.get("status") == "green" and found.get("optimizer_status") == "ok" else 0
            if green == 3:
                return found
        await asyncio.sleep(0.5)


async def memory(client: httpx.AsyncClient, pid: int | None) -> tuple[int | None, int | None]:
    """Anonymous and file-backed bytes in memory; without a pid the former as the server's allocator reports it.

    Proportional set sizes, since Qdrant maps each file of vectors twice, and resident sets count both.
    """
    if pid is not None:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        lines = dict(line.split(":", 1) for line in rollup)
        anonymous, file = (int(lines[name].split()[0]) * 1024 for name in ("Pss_Anon", "Pss_File"))
        return anonymous, file
    answer = await client.get("/metrics")
    values = dict(line.split() for line in answer.text.splitlines() if line.startswith("memory_"))
    return (int(float(values["memory_resident_bytes"])) if "memory_resident_bytes" in values else None), None
