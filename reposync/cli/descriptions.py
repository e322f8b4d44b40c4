"""One run and one repository in a few lines for a person: how it is, what changed, and what to do next."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

import click

from reposync.cli.output import FAILED_FILE, NOTHING, Code, Line, changes, reason, short
from reposync.cli.tables import styled
from reposync.cli.terminal import width_of, wrapped
from reposync.words import ago, duration, escape_unprintable, next_attempt, roughly, until

if TYPE_CHECKING:
    from reposync.operations.repositories import Overview
    from reposync.operations.runs import RunAttempt, RunDetail, RunProblem, RunRequest


def _facts(facts: Mapping[str, str | None]) -> Iterator[Line]:
    """A line for each that is not empty; what does not fit stays in the column of the texts."""
    given = {name: text for name, text in facts.items() if text}
    margin = max(map(len, given), default=0) + 2
    for name, text in given.items():
        head = click.style(f"{name:<{margin}}", dim=True)
        yield Code(wrapped(f"{head}{text}", width_of(sys.stdout), hang=margin))


def _title(name: str, state: str, more: str = "") -> Line:
    return f"{click.style(escape_unprintable(name), bold=True)}: {styled(state)}{more}"


def _moment(when: datetime | None) -> str:
    return f"{when:%Y-%m-%d %H:%M:%S} UTC ({ago(when)})" if when is not None else ""


def run_lines(run: RunDetail, problems: list[RunProblem]) -> Iterator[Line]:
    """With the attempts and requests if there are several, and the `problems`."""
    failed = f" with {run.files_failed:,} file{'s' * (run.files_failed != 1)} failed" if run.files_failed else ""
    yield _title(run.repository, run.status, failed)
    yield from _facts(
        {
            "run": run.id,
            "commit": _commit(run),
            "change": _change(run),
            "time": _time(run),
            "who": _who(run),
            "problem" if run.error_code else "notice": reason(run.error_code, run.error_message),
            "next": next_command(run.id[:8], run.status, run.repository, failed=run.files_failed),
        }
    )
    if len(run.attempts) > 1 or any(attempt.times > 1 for attempt in run.attempts):
        yield "attempts:"
        yield from map(_attempt, run.attempts)
    if len(run.requests) > 1:
        yield "requests:"
        yield from map(_request, run.requests)
    if run.problem_counts:
        yield f"{'failed or ' if FAILED_FILE in run.problem_counts else ''}skipped:"
    for problem in problems:
        line = f"  {problem.reason:<14}{escape_unprintable(problem.path)}  {escape_unprintable(problem.detail)}"
        yield click.style(line, fg="red") if problem.reason == FAILED_FILE else line
    if (rest := sum(run.problem_counts.values()) - len(problems)) > 0:
        yield f"  ... and {rest:,} more (--limit)"


def next_command(run: str, status: str, repository: str, *, failed: int = 0) -> str | None:
    """What a person may do about a run in that state; None if there is nothing to do."""
    match status:
        case "blocked":
            return f"`reposync runs approve {run}` if the deletion is right"
        case "failed" | "cancelled":
            return f"`reposync runs retry {run}`"
        case "queued" | "running" | "retrying":
            return f"`reposync runs watch {run}`"
    return f"`reposync sync {escape_unprintable(repository)}` tries the failed files again" if failed else None


def _commit(run: RunDetail) -> str | None:
    after = run.commit_after or (run.brake.commit if run.brake is not None else None)
    if after is None:
        return short(run.commit_before) if run.commit_before else None
    page = f"  {run.commit_page}{after}" if run.commit_page else ""
    if run.commit_before in (None, after):
        return f"{short(after)}{', unchanged' if run.commit_before else ', the first one'}{page}"
    return f"{short(run.commit_before)} -> {short(after)}{page}"


def _change(run: RunDetail) -> str:
    if run.status == "running":
        from reposync.operations.following import displayed_progress

        progress = displayed_progress(run)
        left = f", {roughly(progress.eta_seconds)} left" if progress.eta_seconds else ""
        return f"{progress.words()}{left}"
    changed = changes(run)
    if changed is None and run.status != "completed":
        return ""
    secrets = f"; {run.new_secrets:,} new secret{'s' * (run.new_secrets != 1)} (reposync secrets)"
    what = [name for name in ("full", "repair", "removal") if getattr(run, name)]
    kind = f" ({', '.join(what)})" if what else ""
    return f"{changed or NOTHING}{kind}{secrets if run.new_secrets else ''}"


def _time(run: RunDetail) -> str:
    if run.started_at is None or run.is_waiting:
        pause = f", {next_attempt(run.next_attempt_at)}" if run.next_attempt_at else ""
        return f"requested {_moment(run.queued_at)}{pause}"
    took = f", took {duration(run.duration_seconds)}" if run.duration_seconds is not None else ""
    several = f" in {run.attempt:,} attempts" if run.attempt > 1 else ""
    if several and run.elapsed_seconds is not None:
        several += f", {duration(run.elapsed_seconds)} from start to end"
    return f"started {_moment(run.started_at)}{took}{several}"


def _who(run: RunDetail) -> str:
    others = f" and {len(run.asked_by) - 1:,} more" if run.asked_by[1:] else ""
    by = f" by {escape_unprintable(run.asked_by[0])}{others}" if run.asked_by else ""
    worker = f", executed by {escape_unprintable(run.worker)}" if run.worker else ""
    tick = f" (tick of {run.scheduled_for:%H:%M:%S} UTC)" if run.scheduled_for else ""
    cancelled = ", requested to stop" if run.cancel_requested and not run.is_final else ""
    return f"{run.trigger}{by}{tick}{worker}{cancelled}"


def _attempt(attempt: RunAttempt) -> str:
    took = f" after {duration((attempt.ended_at - attempt.started_at).total_seconds())}" if attempt.ended_at else ""
    times = f", {attempt.times:,} times" if attempt.times > 1 else ""
    why = reason(attempt.error_code, attempt.error_message)
    outcome = attempt.outcome or "running"
    head = f"  {attempt.attempt:>2}  {outcome}{took}{times}  {escape_unprintable(attempt.worker)}"
    return f"{head}  {why}" if why else head


def _request(request: RunRequest) -> str:
    what = [name for name in ("full", "repair", "removal", "approval") if getattr(request, name)]
    flags = f"  {', '.join(what)}" if what else ""
    return f"  {request.trigger:<8}  {escape_unprintable(request.asked_by)}  {_moment(request.asked_at)}{flags}"


def repository_lines(row: Overview, missed: list[datetime]) -> Iterator[Line]:
    paused = f": {escape_unprintable(row.paused_reason)}" if row.paused_reason else ""
    yield _title(row.name, row.state, paused)
    where = {"config": f"registry file {row.origin_file}" if row.origin_file else "registry file"}
    origin = escape_unprintable(where.get(row.origin, row.origin))
    branch = f", branch {escape_unprintable(row.branch)}" if row.branch else ""
    cron = f" ({row.cron_expression}, {row.timezone})" if row.cron_expression else ""
    due = f", next {until(row.next_due_at)}" if row.next_due_at else ""
    counts = [f"{row.files:,} files", f"{row.chunks:,} chunks"]
    counts += [f"{number:,} {name}" for number, name in ((row.skipped, "skipped"), (row.failed, "failed")) if number]
    if row.meaning_indexed is not None:
        counts.append(f"words only, {row.meaning_indexed:.0%} of meaning")
    behind = f", behind {short(row.head_commit)} for {ago(row.behind_since).removesuffix(' ago')}"
    synced = f", last sync {_moment(row.last_sync_at)}" if row.last_sync_at else "never synced"
    commit = f"{short(row.last_commit)}{behind if row.behind_since else ''}" if row.last_commit else ""
    pause = f", {next_attempt(row.next_attempt_at)}" if row.next_attempt_at else ""
    run = (row.last_run or "")[:8]
    yield from _facts(
        {
            "source": f"{escape_unprintable(row.location)}{branch}; from {origin}",
            "commit": f"{commit}{synced}",
            "index": f"{', '.join(counts)}, in collection {escape_unprintable(row.collection)}",
            "schedule": f"{row.schedule or 'on request only'}{cron}{due}",
            "missed": ", ".join(f"{tick:%Y-%m-%d %H:%M:%S} UTC" for tick in missed[:5]),
            "last run": f"{row.last_status}{pause}  {run}" if run else "",
            "problem": escape_unprintable(row.last_error or ""),
            "next": _next_of(row, run),
        }
    )


def _next_of(row: Overview, run: str) -> str | None:
    name = escape_unprintable(row.name)
    if row.state == "paused":
        return f"`reposync repos resume {name}`"
    if not run or row.last_status is None:
        return f"`reposync sync {name}`"
    return next_command(run, row.last_status, row.name, failed=row.failed)
