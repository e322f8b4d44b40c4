"""Who asked for a run, as the pages show it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from reposync.runs.blocked import read_brake
from reposync.store.requests import RunRequest

_RUN = re.compile("run ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")


@dataclass(frozen=True, slots=True)
class RequestLine:
    """`wants`: what the run is to do for it. `taken_by`: the run that does it in place of this one."""

    request: RunRequest
    wants: str
    taken_by: str | None


def request_lines(requests: Sequence[RunRequest]) -> list[RequestLine]:
    return [RequestLine(each, _wants(each), _run_of(each.withdrawn_by)) for each in requests]


def askers_of(requests: Sequence[RunRequest]) -> list[str]:
    """Who still asks, each of them once; who did, if nobody does any more."""
    live = [each for each in requests if each.is_live]
    return list(dict.fromkeys(each.asked_by for each in live or requests))


def _wants(request: RunRequest) -> str:
    kinds = (("removal", request.removal), ("repair", request.repair), ("full sync", request.full))
    wants = next((kind for kind, is_asked in kinds if is_asked), "sync")
    if request.approval is None:
        return wants
    brake = read_brake(request.approval)
    if brake is None:
        return f"{wants}, approved beforehand"
    return f"{wants}; {brake.lost:,} of {brake.indexed:,} files may go at commit {brake.commit[:10]}"


def _run_of(withdrawn_by: str | None) -> str | None:
    match = _RUN.fullmatch(withdrawn_by or "")
    return match[1] if match else None
