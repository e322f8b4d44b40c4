"""What stored points say about their chunks. Any program may have written a payload, so nothing in it is trusted."""

from __future__ import annotations

from typing import TypeGuard

from reposync.content.model import Chunk, content_hash
from reposync.vectors.port import StoredPoint, point_id


def stored_chunk(point: StoredPoint) -> Chunk:
    """Raises LookupError and TypeError if the point is not one of ours."""
    metadata, text = point.payload["metadata"], point.payload["page_content"]
    start_index = metadata.get("start_index")
    return Chunk(text, metadata["start_line"], metadata["end_line"], start_index if is_count(start_index) else None)


def is_count(stored: object) -> TypeGuard[int]:
    return isinstance(stored, int) and not isinstance(stored, bool) and stored >= 0


def own_text(point: StoredPoint, version_id: str) -> str | None:
    """The text of a point that this program stored, unaltered; None for a point that a different one wrote or changed:
    the id follows from version, path, blob and chunk, and the hash from the text."""
    try:
        metadata, text = point.payload["metadata"], point.payload["page_content"]
        identity = point_id(version_id, *(metadata[key] for key in ("path", "blob_sha", "chunk_index")))
        is_ours = point.id == identity and content_hash(text) == metadata["content_hash"]
    except (KeyError, TypeError, AttributeError, UnicodeEncodeError):
        return None
    return text if is_ours else None
