"""What the requests got, held against the rows of the database: nothing lost, nothing doubled."""

from __future__ import annotations

import bisect
import itertools
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from reposync.store.run import Run
from reposync.store.status import RunStatus


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """One request, in seconds since 1970."""

    path: int
    sent: float
    answered: float
    status: int
    run: str


def read_journal(path: Path) -> list[SyncRequest]:
    found = []
    for line in path.read_text().splitlines():
        number, sent, answered, status, *run = line.split(" ")
        found.append(SyncRequest(int(number), float(sent), float(answered), int(status), "".join(run)))
    return found


@dataclass(slots=True)
class Commits:
    """What was committed to a repository, in order, and since when it was there to be seen (seconds since 1970)."""

    shas: list[str] = field(default_factory=list)
    since: list[float] = field(default_factory=list)

    def add(self, sha: str) -> None:
        self.shas.append(sha)
        self.since.append(time.time())

    def seen_at(self, moment: float) -> int:
        """The number of the latest one that was there at that moment; -1 for none."""
        return bisect.bisect_right(self.since, moment) - 1


def violations(requests: Iterable[SyncRequest], runs: Sequence[Run], commits: Sequence[Commits]) -> list[str]:
    """What coalescing promises, request by request and run by run. `commits`: of each path's repository.

    Every answer names a run that exists, and whose commit is the one that was there when the request was sent, or a
    later one. Every run was requested, and of a repository none was queued while a different one waited.
    """
    wrong = []
    known = {run.id: run for run in runs}
    for each in requests:
        run = known.get(each.run)
        if each.status != 202 or run is None:
            wrong.append(f"answer {each.status} with the unknown run {each.run!r}")
        elif run.status is not RunStatus.COMPLETED or run.commit_after is None:
            wrong.append(f"run {run.id} is {run.status}: {run.error_message}")
        elif commits[each.path].shas.index(run.commit_after) < commits[each.path].seen_at(each.sent):
            wrong.append(f"run {run.id} took an older commit than was there when it was requested")
    of = defaultdict[str, list[Run]](list)
    for run in sorted(runs, key=lambda run: run.queued_at):
        of[run.repository].append(run)
    for rows in of.values():
        for before, after in itertools.pairwise(rows):
            if before.started_at is None or after.queued_at < before.started_at:
                wrong.append(f"run {after.id} was queued while {before.id} waited")
    named = {each.run for each in requests}
    wrong += [f"run {run.id} was not requested" for run in runs if run.id not in named]
    return wrong
