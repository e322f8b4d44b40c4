"""Is every index what a first sync of the same commit makes, and what the manifest says?"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.storm.pods import ROOT
from reposync.vectors.port import point_id

# What names the run that stored a point, or the database that it was stored from.
_OF_THE_RUN = {"commit", "epoch", "repository_id"}
FRESH = "fresh"

Point = dict[str, Any]


@dataclass(frozen=True)
class Expected:
    """Of one repository. `tree` and `manifest`: blob by path, as git and as the database have it; `chunks` by path, as
    the manifest has them; `fresh`: the points of a first sync."""

    name: str
    id: str
    head: str
    last_commit: str | None
    tree: Mapping[str, str]
    manifest: Mapping[str, str]
    chunks: Mapping[str, int]
    fresh: Sequence[Point]


def differences(expected: Expected, points: Sequence[Point]) -> list[str]:
    """What is wrong with the points of one repository, in sentences."""
    wrong = []
    name = expected.name
    if expected.last_commit != expected.head:
        wrong.append(f"{name}: last_commit is {expected.last_commit}, the head is {expected.head}")
    here, there = {_place(each): each for each in points}, {_place(each): each for each in expected.fresh}
    if len(here) < len(points):
        wrong.append(f"{name}: {len(points) - len(here)} chunks are there twice")
    stale, missing = sorted(here.keys() - there.keys()), sorted(there.keys() - here.keys())
    changed = [key for key in sorted(here.keys() & there.keys()) if _compared(here[key]) != _compared(there[key])]
    if stale or missing or changed:
        wrong.append(
            f"{name}: {len(stale)} points too many {stale[:3]}, {len(missing)} missing {missing[:3]}, "
            f"{len(changed)} different {changed[:3]}"
        )
    misnamed = [
        key
        for key, each in here.items()
        if each["id"] != point_id(expected.id, key[0], each["payload"]["metadata"]["blob_sha"], key[1])
    ]
    if misnamed:
        wrong.append(f"{name}: {len(misnamed)} points under ids that are not theirs {misnamed[:3]}")
    if expected.manifest != expected.tree:
        wrong.append(f"{name}: the manifest is not the commit's tree")
    if Counter(path for path, _ in here) != Counter({path: n for path, n in expected.chunks.items() if n}):
        wrong.append(f"{name}: the manifest counts other chunks than the index holds")
    return wrong


async def sync_afresh(configuration: str, environment: Mapping[str, str], folder: Path, qdrant_url: str) -> None:
    """A first sync of everything into the collection `FRESH`, in one process, with a database of its own."""
    (folder / "fresh.yaml").write_text(configuration)
    own = {
        "REPOSYNC_STATE_DIR": str(folder / "fresh"),
        "REPOSYNC_CONFIG": str(folder / "fresh.yaml"),
        "REPOSYNC_QDRANT_URL": qdrant_url,
    }
    for command in ("apply", "sync"):
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "reposync", command],
            env={**environment, **own},
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"the fresh {command} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


async def points_by_repository(qdrant_url: str, collection: str) -> dict[str, list[Point]]:
    """Every point of the collection, past our own adapter."""
    found: dict[str, list[Point]] = {}
    offset = None
    async with httpx.AsyncClient(base_url=qdrant_url, timeout=60) as client:
        while True:
            body = {"limit": 1000, "offset": offset, "with_payload": True, "with_vector": True}
            answer = await client.post(f"/collections/{collection}/points/scroll", json=body)
            answer.raise_for_status()
            page = answer.json()["result"]
            for point in page["points"]:
                found.setdefault(point["payload"]["metadata"]["repository"], []).append(point)
            offset = page["next_page_offset"]
            if offset is None:
                return found


def _place(point: Point) -> tuple[str, int]:
    metadata = point["payload"]["metadata"]
    return metadata["path"], metadata["chunk_index"]


def _compared(point: Point) -> Any:
    metadata = {key: value for key, value in point["payload"]["metadata"].items() if key not in _OF_THE_RUN}
    return point["payload"]["page_content"], metadata, point["vector"]
