"""What was recorded, judged, as a table and a list of what must not have been."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.storm import proofs
from benchmarks.storm.pods import Pod
from benchmarks.storm.proofs import Intrusions, TickTaken, TickVerdict
from benchmarks.storm.rivals import Rival
from benchmarks.storm.storm import Recorded


@dataclass
class Verdict:
    """`violations`: one sentence each; empty is what is promised."""

    recorded: Recorded
    overlaps: list[tuple[proofs.Attempt, proofs.Attempt]]
    reads: Intrusions
    writes: Intrusions
    ticks: TickVerdict
    taken_over: list[float]
    thawed: list[float]
    baseline: TickVerdict | None = None
    baseline_twice: int = 0
    baseline_executed: int = 0
    violations: list[str] = field(default_factory=list)


def judge(recorded: Recorded) -> Verdict:
    records, options = recorded.records, recorded.options
    thaws = recorded.of_all_pods("thaws")
    names = [each.name for each in records.repositories]

    def judged(taken: Iterable[TickTaken], places: Sequence[Pod] | Sequence[Rival]) -> TickVerdict:
        return proofs.judge_ticks(
            taken,
            names,
            period_seconds=options.period_seconds,
            window=recorded.window,
            impaired=[each.impaired for each in places],
            prompt_seconds=options.prompt_seconds,
        )

    verdict = Verdict(
        recorded,
        overlaps=proofs.overlapping(records.attempts),
        reads=proofs.intruding(recorded.asked, records.attempts, thaws),
        writes=proofs.intruding(recorded.written, records.attempts, thaws),
        ticks=judged(records.ticks, recorded.pods),
        taken_over=proofs.take_overs(records.attempts, recorded.of_all_pods("kills")),
        thawed=proofs.take_overs(records.attempts, recorded.of_all_pods("freezes")),
    )
    if recorded.rivals:
        executed = [
            each
            for rival in recorded.rivals
            for each in rival.executed()
            if recorded.window.start < each.tick <= recorded.window.end
        ]
        verdict.baseline_twice, verdict.baseline_executed = proofs.executed_twice(executed), len(executed)
        verdict.baseline = judged(
            [TickTaken(each.repository, each.tick, each.at) for each in executed], recorded.rivals
        )
    verdict.violations = list(_violations(verdict))
    return verdict


def _violations(verdict: Verdict) -> Iterable[str]:
    recorded, ticks = verdict.recorded, verdict.ticks
    for before, after in verdict.overlaps:
        yield f"attempts of {before.repository} overlapped: {before} and {after}"
    for request in verdict.reads.reads:
        yield f"{request.process} asked GitLab for {request.repository} at {request.arrived:.3f} beside another attempt"
    for request in verdict.writes.writes:
        yield f"{request.process} wrote points of {request.repository} at {request.arrived:.3f} without holding its run"
    for name, tick in ticks.duplicates:
        yield f"the tick {tick:.0f} of {name} was taken twice"
    for name, tick in ticks.unscheduled:
        yield f"{name} has a run for {tick}, which is no tick"
    for name, tick in ticks.lost:
        yield f"the tick {tick:.0f} of {name} was lost"
    if recorded.records.same_tick:
        yield f"{recorded.records.same_tick} pairs of runs have one tick"
    if ticks.missed:
        yield f"{ticks.missed} ticks were noted as missed, though none was later than the grace"
    for (what, code), count in recorded.records.failures.items():
        if code == "INTERNAL_ERROR":
            yield f"{count} ended by a defect ({what})"
    yield from recorded.inexact
    yield from recorded.complaints
    yield from recorded.logs.tracebacks
    yield from (f"a line that is no JSON: {line}" for line in recorded.logs.not_json)
    yield from (f"a process outlived its daemon: {each}" for each in recorded.orphans)


def table(verdict: Verdict) -> str:
    recorded, ticks = verdict.recorded, verdict.ticks
    records = recorded.records
    lines: list[tuple[str, str]] = []

    def say(name: str, value: object) -> None:
        lines.append((name, str(value)))

    seconds = recorded.window.end - recorded.window.start
    say("blows", f"{sum(recorded.struck.values())}: " + _counted(recorded.struck))
    say("storm and calm", f"{seconds:.0f} s, of which {recorded.settled_seconds:.1f} s until all was settled")
    say("machine", f"{recorded.busy_cores:.2f} cores busy in the storm; load now {recorded.load:.1f}")
    say("commits", recorded.commits)
    say("runs", _counted({f"{trigger} {status}": count for (trigger, status), count in records.runs.items()}))
    say("attempts", f"{len(records.attempts)}: " + _counted(Counter(each.outcome or "-" for each in records.attempts)))
    say("failures", _counted({f"{a} {b}".strip(): count for (a, b), count in records.failures.items()}) or "none")
    say("requests to GitLab", f"{len(recorded.asked)}, refused: {len(recorded.refused)}")
    say("writes to Qdrant", f"{len(recorded.written)}; embedded texts: {recorded.embedded}")
    say("", "")
    say("overlapping attempts", len(verdict.overlaps))
    say(
        "GitLab asked beside another attempt",
        f"{len(verdict.reads.reads)} (by a process just thawed: {len(verdict.reads.woken)}; "
        f"beside none: {len(verdict.reads.idle)})",
    )
    say("points written without holding the run", len(verdict.writes.writes))
    say(
        "ticks",
        f"{ticks.expected}: {ticks.own} queued, {ticks.joined} joined a waiting run, "
        f"{ticks.coalesced} covered by a later one (no pod could)",
    )
    say("ticks taken twice", len(ticks.duplicates))
    say("ticks lost", len(ticks.lost))
    say("ticks taken late by", _spread(ticks.late_seconds))
    say("repositories that are not exact", f"{len(recorded.inexact)} ({recorded.points} points compared)")
    say("daemons that ended by themselves, or badly", len(recorded.complaints))
    say("tracebacks in logs", len(recorded.logs.tracebacks))
    say("taken over after kill -9", _spread(verdict.taken_over))
    say("taken over after a freeze", _spread(verdict.thawed))
    say("SIGTERM to exit", _spread([each for pod in recorded.pods for each in pod.stop_seconds]))
    for pod in recorded.pods:
        say(f"event loop lag, {pod.name}", _lag(pod.lag))
    if verdict.baseline is not None:
        late = ", ".join(f"{rival.late_seconds * 1000:g}" for rival in recorded.rivals)
        ended = sum(each.ended_by_itself for each in recorded.rivals)
        say("", "")
        say("baseline: RedisJobStore and SET NX", f"{verdict.baseline_executed} executed, pods {late} ms late")
        say("baseline: executed twice", verdict.baseline_twice)
        say(
            "baseline: ticks not executed",
            f"{verdict.baseline.expected - verdict.baseline.own} of {verdict.baseline.expected}: "
            f"{verdict.baseline.coalesced} covered by a later one (no pod could), {len(verdict.baseline.lost)} lost",
        )
        say("baseline: pods that ended by themselves", ended)
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {value}".rstrip() for name, value in lines)


def notes(verdict: Verdict) -> str:
    """What the daemons logged as warnings and errors, and what GitLab refused."""
    recorded = verdict.recorded
    said = Counter({f"{level}: {event}": n for (level, event), n in recorded.logs.events.items() if level != "info"})
    said.update(f"GitLab refused: {each}" for each in recorded.refused)
    said.update(f"asked without holding a run: {each.what}" for each in verdict.reads.idle)
    return "\n".join(f"{count:>6} {what}" for what, count in said.most_common(40))


def violations(verdict: Verdict, most: int = 30) -> str:
    found = verdict.violations
    more = [f"... and {len(found) - most} more"] if len(found) > most else []
    return "\n".join([*found[:most], *more, f"{len(found)} violations"])


def _counted(counts: dict[str, int] | Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda each: -each[1]))


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "none"
    return f"p50 {statistics.median(values):.2f} s, max {max(values):.2f} s ({len(values)})"


def _lag(lag: Counter[float]) -> str:
    total = sum(lag.values())
    if not total:
        return "not measured"
    below = 0
    for bound in sorted(lag):
        below += lag[bound]
        if below >= 0.99 * total:
            break
    worst = max(each for each, count in lag.items() if count)
    late = sum(count for each, count in lag.items() if each > 0.1)
    return f"p99 up to {bound * 1000:g} ms, worst up to {worst * 1000:g} ms, {late} of {total} over 100 ms"
