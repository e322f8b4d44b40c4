"""Files whose chunks another version of the index has already: their texts are taken from there, and no blob is
read."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from reposync.embedding.sparse import document_vector
from reposync.store.manifest import ManifestRow
from reposync.sync.dense import DenseVectors
from reposync.sync.prepare import PreparedChunk, PreparedFile
from reposync.sync.writer import Writer, pages
from reposync.vectors.port import Index, StoredPoint

# Of a file with 100 chunks of 7,000 characters come 0.7 MB; most have one or two.
FILES_AT_ONCE = 64


async def carry_over(
    index: Index,
    version_id: str,
    rows: Sequence[ManifestRow],
    vectors: DenseVectors,
    writer: Writer,
    *,
    wanted: Mapping[str, str],
) -> list[str]:
    """Copy what the version `version_id` has of these files, which are recorded there as `rows`; their vectors are
    taken over if the model is the same. `wanted`: see `Writer.store_as_recorded`. Returns the paths of which the index
    lacks points, or which the model refuses now: these have to be read."""
    left: list[str] = []
    by_path = {row.path: row for row in rows}
    for page in pages(sorted(by_path), FILES_AT_ONCE):
        found: dict[str, list[StoredPoint]] = {path: [] for path in page}
        async for points in index.chunks(version_id, page):
            for point in points:
                found[point.payload["metadata"]["path"]].append(point)
        prepared = await asyncio.to_thread(_prepare, found, by_path)
        left += [path for path in page if path not in prepared]
        embedded = await vectors.embed(list(prepared.values()))
        refused = [each.file.path for each in embedded if each.file.skipped]
        taken = [each for each in embedded if not each.file.skipped]
        if taken:
            mine = {path: sha for path, sha in wanted.items() if path in prepared and path not in refused}
            await writer.store_as_recorded(taken, by_path, wanted=mine)
            vectors.stored(taken)
        left += refused
    return left


def _prepare(found: Mapping[str, Sequence[StoredPoint]], rows: Mapping[str, ManifestRow]) -> dict[str, PreparedFile]:
    """Those that are whole."""
    prepared = {}
    for path, points in found.items():
        row = rows[path]
        metadata = {
            each["chunk_index"]: (each, text) for each, text in map(_parts, points) if each["blob_sha"] == row.blob_sha
        }
        if sorted(metadata) != list(range(row.chunks)):
            continue
        chunks = tuple(_chunk(*metadata[number], path) for number in range(row.chunks))
        size = row.size_bytes or 0
        prepared[path] = PreparedFile(path, row.mode, row.blob_sha, size, row.language, chunks, None)
    return prepared


def _parts(point: StoredPoint) -> tuple[Mapping[str, Any], str]:
    return point.payload["metadata"], point.payload["page_content"]


def _chunk(metadata: Mapping[str, Any], text: str, path: str) -> PreparedChunk:
    vector = document_vector(text, path=path)
    return PreparedChunk(text, metadata["start_line"], metadata["end_line"], metadata["content_hash"], vector)
