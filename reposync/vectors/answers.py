"""What Qdrant's answers mean: results, refusals, and failures that may pass, in words for a person."""

from __future__ import annotations

import re
from http import HTTPStatus
from http.client import responses
from typing import Any

from reposync.errors import IndexUnsupported, VectorIndexError
from reposync.http_client import TransientFailure
from reposync.outgoing import parse_json
from reposync.vectors.port import CollectionMissing

_MAX_MESSAGE_CHARS = 500
# An index that one node has made; another one of the cluster may not know it yet.
_INDEX_MISSING = re.compile("index required|no appropriate index", re.IGNORECASE)
_NO_SPACE = re.compile("no space left|available disk space", re.IGNORECASE)
_LOCKED = re.compile(r"\block(?:ed)?\b", re.IGNORECASE)


class AlreadyExists(VectorIndexError):
    """409: another process made it first."""


def is_completed(result: Any) -> bool:
    """Whether a write is applied. `wait_timeout` and `acknowledged`: it is queued, and will be."""
    parts = result if isinstance(result, list) else [result]
    return all(isinstance(each, dict) and each.get("status") == "completed" for each in parts)


def refusal_of(where: str, what: str, status: int, body: bytes) -> Exception:
    """The error for a status that a retry does not change, or a TransientFailure for one that it may change."""
    message = message_of(body)
    details = f"could not {what}: {message or responses.get(status, 'no reason given')} (HTTP {status})."
    if status == HTTPStatus.BAD_REQUEST and _INDEX_MISSING.search(message):
        return TransientFailure(message)
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        if _LOCKED.search(message):
            return VectorIndexError(f"{where} is locked, {details}", remedy="Unlock it, then sync again.")
        remedy = "Check QDRANT_API_KEY and its permissions."
        if any(each in message.lower() for each in ("manage", "global", "access to collection")):
            remedy = (
                "Making a collection, its indexes and its alias needs a key with manage access. A token for single "
                "collections works once they exist, if it names the collection and its alias with access `rw`."
            )
        return VectorIndexError(f"{where} refuses the API key, {details}", remedy=remedy)
    if status == HTTPStatus.NOT_FOUND and "ollection" in message:
        return CollectionMissing(f"{where}: {details}", remedy="A sync makes the collection.")
    if status == HTTPStatus.CONFLICT or "already exists" in message:
        return AlreadyExists(f"{where}: {details}")
    limit = "A limit of the collection's strict mode: change its strict_mode_config, or switch it off."
    return VectorIndexError(f"{where}: {details}", remedy=limit if ". Help: " in message else None)


def final_error(where: str, what: str, failure: TransientFailure) -> VectorIndexError | None:
    """The error for a failure that will not pass by itself. Another one gets Qdrant's own words."""
    message = message_of(failure.body)
    if "cannot be opened: " in message:  # by the embedded engine: further attempts meet the same files
        return VectorIndexError(f"{where}: could not {what}: {message}.")
    if failure.status == HTTPStatus.NOT_IMPLEMENTED:
        return IndexUnsupported(f"{where}: could not {what}: {message}.")
    if failure.status == HTTPStatus.INSUFFICIENT_STORAGE or _NO_SPACE.search(message):
        return VectorIndexError(
            f"{where} has no space left, could not {what}: {message or 'insufficient storage'}.",
            remedy="Give it more disk or memory, or remove collections that nobody needs; then sync again.",
        )
    failure.reason += f": {message}" if message else ""
    return None


def message_of(content: bytes) -> str:
    """Qdrant's own words, from `{"status": {"error": ...}}`; the answer of a proxy is cut short."""
    try:
        status = parse_json(content)["status"]
        text = status["error"] if isinstance(status, dict) else str(status)
    except (ValueError, KeyError, TypeError):
        text = content.decode(errors="replace")
    return " ".join(str(text).split())[:_MAX_MESSAGE_CHARS].rstrip(".")
