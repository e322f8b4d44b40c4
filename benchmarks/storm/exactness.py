"""Is every index what a first sync of the same commit makes, and what the manifest says?"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks.storm.pods import ROOT
from benchmarks.storm.projects import Project
from benchmarks.storm.rows import Records
from reposync.vectors.port import point_id

# What names the run that stored a point, or the database that it was stored from.
_OF_THE_RUN = {"commit", "epoch", "repository_id"}
FRESH = "fresh"

Points = dict[tuple[str, str, int], dict[str, Any]]


async def differences(
    records: Records, projects: Sequence[Project], qdrant_url: str, collection: str, fresh: Points
) -> list[str]:
    """One sentence for each repository that is not exact."""
    found, doubled = await points(qdrant_url, collection)
    wrong = [f"{name}: {path} chunk {chunk} is there twice" for name, path, chunk in doubled]
    ids = {each.name: each.id for each in records.repositories}
    heads = {each.name: each.last_commit for each in records.repositories}
    by_repository, freshly = _by_repository(found), _by_repository(fresh)
    for project in projects:
        name = project.name
        here, there = by_repository.get(name, {}), freshly.get(name, {})
        if heads.get(name) != project.head():
            wrong.append(f"{name}: last_commit is {heads.get(name)}, the head is {project.head()}")
        stale, missing = here.keys() - there.keys(), there.keys() - here.keys()
        changed = [key for key in here.keys() & there.keys() if _compared(here[key]) != _compared(there[key])]
        if stale or missing or changed:
            wrong.append(
                f"{name}: {len(stale)} points too many {sorted(stale)[:3]}, {len(missing)} missing "
                f"{sorted(missing)[:3]}, {len(changed)} different {changed[:3]}"
            )
        misnamed = [
            key
            for key, point in here.items()
            if point["id"] != point_id(ids[name], key[0], point["payload"]["metadata"]["blob_sha"], key[1])
        ]
        if misnamed:
            wrong.append(f"{name}: {len(misnamed)} points under ids that are not theirs")
        manifest = records.manifest[name]
        if {path: blob for path, (blob, _) in manifest.items()} != project.blobs():
            wrong.append(f"{name}: the manifest is not the commit's tree")
        chunks = {path: sum(1 for key in here if key[0] == path) for path in manifest}
        if chunks != {path: count for path, (_, count) in manifest.items()}:
            wrong.append(f"{name}: the manifest counts other chunks than the index holds")
    return wrong


async def fresh_points(configuration: str, environment: Mapping[str, str], folder: Path, qdrant_url: str) -> Points:
    """By a first sync of everything, with a database and a collection of its own, in one process."""
    (folder / "fresh.yaml").write_text(configuration)
    own = {"REPOSYNC_STATE_DIR": str(folder / "fresh"), "REPOSYNC_CONFIG": str(folder / "fresh.yaml")}
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "reposync", "sync"],
        env={**environment, **own, "QDRANT_URL": qdrant_url},
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the fresh sync failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return (await points(qdrant_url, FRESH))[0]


async def points(qdrant_url: str, collection: str) -> tuple[Points, list[tuple[str, str, int]]]:
    """Every point by (repository, path, chunk), and those that are there more than once."""
    found: Points = {}
    doubled = []
    offset = None
    async with httpx.AsyncClient(base_url=qdrant_url, timeout=60) as client:
        while True:
            body = {"limit": 1000, "offset": offset, "with_payload": True, "with_vector": True}
            answer = await client.post(f"/collections/{collection}/points/scroll", json=body)
            answer.raise_for_status()
            page = answer.json()["result"]
            for point in page["points"]:
                told = point["payload"]["metadata"]
                key = (told["repository"], told["path"], told["chunk_index"])
                if key in found:
                    doubled.append(key)
                found[key] = point
            offset = page["next_page_offset"]
            if offset is None:
                return found, doubled


def _by_repository(found: Points) -> dict[str, dict[tuple[str, int], dict[str, Any]]]:
    sorted_out: dict[str, dict[tuple[str, int], dict[str, Any]]] = {}
    for (repository, path, chunk), point in found.items():
        sorted_out.setdefault(repository, {})[path, chunk] = point
    return sorted_out


def _compared(point: dict[str, Any]) -> Any:
    metadata = {key: value for key, value in point["payload"]["metadata"].items() if key not in _OF_THE_RUN}
    return point["payload"]["page_content"], metadata, point["vector"]
