"""What has to be true after a storm, as functions of what was recorded. Nothing here knows how the daemon works: the
records come from the database's rows, from the servers' request logs, and from who was struck when.

Times are seconds since the epoch, all by the clock of one machine.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a run. `process`: the operating-system process behind it; `ended` None: it goes on."""

    repository: str
    run: str
    number: int
    process: str
    started: float
    ended: float | None
    outcome: str | None = None

    def covers(self, moment: float) -> bool:
        return self.started <= moment and (self.ended is None or moment <= self.ended)


@dataclass(frozen=True, slots=True)
class Request:
    """One request that a server got. `writes`: it changes what the server holds."""

    process: str
    repository: str
    arrived: float
    writes: bool
    what: str


@dataclass(frozen=True, slots=True)
class Span:
    """When a pod could not do its duty: `end` includes what it may take until it can again."""

    start: float
    end: float


@dataclass(frozen=True, slots=True)
class TickTaken:
    """A run took a tick at the moment `at`: it was queued for it, or (`joined`) it waited already. `missed`: noted as
    missed, and nothing runs for it."""

    repository: str
    tick: float
    at: float
    joined: bool = False
    missed: bool = False


def overlapping(attempts: Iterable[Attempt]) -> list[tuple[Attempt, Attempt]]:
    """Pairs of attempts of one repository that went on at the same time."""
    found = []
    for same in _by_repository(attempts).values():
        longest: Attempt | None = None
        for attempt in sorted(same, key=lambda each: each.started):
            if longest is not None and attempt.started < _end(longest):
                found.append((longest, attempt))
            if longest is None or _end(attempt) > _end(longest):
                longest = attempt
    return found


@dataclass(frozen=True, slots=True)
class Intrusions:
    """Requests of a process for a repository that it held no attempt of. `writes`, and `reads` beside another process's
    attempt, are overlaps; `woken` reads are of a process that had been frozen and had just learnt of it; `idle` ones
    disturbed nobody."""

    writes: list[Request]
    reads: list[Request]
    woken: list[Request]
    idle: list[Request]


def intruding(
    requests: Iterable[Request],
    attempts: Iterable[Attempt],
    woken: Iterable[tuple[str, float]] = (),
    *,
    waking_seconds: float = 5.0,
) -> Intrusions:
    """`woken`: process and moment at which it was thawed."""
    by_repository = _by_repository(attempts)
    thawed = defaultdict(list)
    for process, moment in woken:
        thawed[process].append(moment)
    found = Intrusions([], [], [], [])
    for request in requests:
        holders = [each for each in by_repository.get(request.repository, ()) if each.covers(request.arrived)]
        if any(each.process == request.process for each in holders):
            continue
        if request.writes:
            found.writes.append(request)
        elif any(0 <= request.arrived - moment <= waking_seconds for moment in thawed[request.process]):
            found.woken.append(request)
        elif not holders:
            found.idle.append(request)
        else:
            found.reads.append(request)
    return found


@dataclass
class TickVerdict:
    """`expected` ticks are `own` (a run of their own), `joined`, `missed`, `coalesced` (no pod could take them; a later
    one stands for them) or `lost`. `late_seconds`: how long after its moment each was taken."""

    expected: int = 0
    own: int = 0
    joined: int = 0
    missed: int = 0
    coalesced: int = 0
    lost: list[tuple[str, float]] = field(default_factory=list)
    duplicates: list[tuple[str, float]] = field(default_factory=list)
    unscheduled: list[tuple[str, float]] = field(default_factory=list)
    late_seconds: list[float] = field(default_factory=list)


def judge_ticks(
    taken: Iterable[TickTaken],
    repositories: Sequence[str],
    *,
    period_seconds: int,
    window: Span,
    impaired: Sequence[Sequence[Span]],
    prompt_seconds: float,
) -> TickVerdict:
    """Every tick of every repository in the window. `impaired`: per pod, when it could not queue. A tick that a pod was
    able to take, from its moment on for `prompt_seconds`, must have been taken; one that no pod was able to take must
    have a later one that stands for it."""
    verdict = TickVerdict()
    log: defaultdict[str, defaultdict[float, list[TickTaken]]] = defaultdict(lambda: defaultdict(list))
    for each in taken:
        log[each.repository][each.tick].append(each)
    verdict.duplicates = [
        (name, tick) for name, ticks in log.items() for tick, takers in ticks.items() if len(takers) > 1
    ]
    verdict.unscheduled = [(name, tick) for name, ticks in log.items() for tick in ticks if tick % period_seconds]
    ticks = scheduled_ticks(window, period_seconds)
    takable = {tick for tick in ticks if _anybody_able(impaired, tick, tick + prompt_seconds)}
    for name in repositories:
        known = sorted(log[name])
        for tick in ticks:
            verdict.expected += 1
            if taker := log[name].get(tick):
                first = taker[0]
                verdict.late_seconds.append(first.at - tick)
                verdict.missed += first.missed
                verdict.joined += first.joined
                verdict.own += not first.missed and not first.joined
            elif tick in takable or bisect.bisect_right(known, tick) == len(known):
                verdict.lost.append((name, tick))
            else:
                verdict.coalesced += 1
    return verdict


def scheduled_ticks(window: Span, period_seconds: int) -> list[float]:
    """Multiples of the period after the window's start, up to its end."""
    first = int(window.start // period_seconds) + 1
    return [float(number * period_seconds) for number in range(first, int(window.end // period_seconds) + 1)]


def take_overs(attempts: Iterable[Attempt], struck: Iterable[tuple[str, float]]) -> list[float]:
    """How long a run that lost its worker waited for the next one, in seconds. `struck`: process and moment of each
    kill or freeze; runs of processes that were not struck do not count."""
    moments = defaultdict(list)
    for process, moment in struck:
        moments[process].append(moment)
    runs = defaultdict(list)
    for attempt in attempts:
        runs[attempt.run].append(attempt)
    waited = []
    for same in runs.values():
        for before, after in pairwise(sorted(same, key=lambda each: each.number)):
            hits = [at for at in moments[before.process] if before.started <= at <= after.started]
            if before.outcome == "lost" and hits:
                waited.append(after.started - min(hits))
    return waited


def _end(attempt: Attempt) -> float:
    return float("inf") if attempt.ended is None else attempt.ended


def _anybody_able(impaired: Sequence[Sequence[Span]], start: float, end: float) -> bool:
    return any(all(span.end <= start or span.start >= end for span in spans) for spans in impaired)


def _by_repository(attempts: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    found: defaultdict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        found[attempt.repository].append(attempt)
    return found


@dataclass(frozen=True, slots=True)
class Executed:
    """The baseline's job ran for a tick."""

    repository: str
    tick: float
    at: float


def executed_twice(executed: Iterable[Executed]) -> int:
    """Executions beyond the first of each tick."""
    return sum(count - 1 for count in Counter((each.repository, each.tick) for each in executed).values())
