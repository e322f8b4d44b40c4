"""`reposync sync`, with `--plan`."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import click

from reposync import operations
from reposync.cli import completion
from reposync.cli.output import FAILED_FILE, Result, note, say, short, summary, warn
from reposync.cli.performing import Performer, performs
from reposync.errors import FAILED, RepositoryNotFound
from reposync.garbage import collect_as_usual
from reposync.paths import existing_path
from reposync.words import escape_unprintable, nearest

NAMED_FAILURES = 5
MOST_FOLDERS = 1_000
INTERRUPTED_FULL = (
    "Files that were read again stay. `reposync sync` does not read the rest again; `reposync sync --full` starts over."
)


@click.command()
@click.argument("targets", nargs=-1, metavar="[NAME|PATH|URL]...", shell_complete=completion.targets)
@click.option("--full", is_flag=True, help="Read every file and check every point; known text is not embedded again.")
@click.option("--plan", "plan_only", is_flag=True, help="Show what would change: files, chunks, characters. No writes.")
@click.option("--allow-mass-delete", is_flag=True, help="Let this run delete more than half of the indexed files.")
@performs
def sync(perform: Performer, targets: tuple[str, ...], full: bool, plan_only: bool, allow_mass_delete: bool) -> Result:
    """Bring the index to the head commit of each target (default: all registered repositories).

    A target is a registered name, a path inside a git repository, or an https URL of one.
    """
    words = [target_of(perform, word) for word in targets]
    if plan_only:
        return _plans(perform, words, full=full)
    try:
        return _sync(perform, words, full=full, allow_mass_delete=allow_mass_delete)
    except KeyboardInterrupt:
        if full:
            note(INTERRUPTED_FULL)
        raise


def target_of(perform: Performer, word: str) -> str:
    """With the absolute path of a folder: a daemon runs in a different one. A registered name comes first."""
    path = existing_path(word)
    if "://" in word:
        return word
    if path is None:
        near = _near_folder(word)
        if near is None:
            return word
        raise RepositoryNotFound(f"There is no folder {word!r}.", remedy=f"Did you mean {near!r}?")
    if word[0] not in "./~":
        try:
            return perform(operations.repositories.get_repository, name=word).name
        except RepositoryNotFound:
            pass
    return str(path.absolute())


def _near_folder(word: str) -> str | None:
    """The folder beside a path that was probably meant; None for what looks like a name."""
    if word[:1] not in ("/", ".", "~"):
        return None
    try:
        missing = Path(word).expanduser()
        near = nearest(missing.name, (each.name for each in islice(missing.parent.iterdir(), MOST_FOLDERS)))
    except (OSError, ValueError, RuntimeError):  # the last one: nobody has that home
        return None
    return None if near is None else str(Path(word).with_name(near))


def _sync(perform: Performer, words: list[str], *, full: bool, allow_mass_delete: bool) -> Result:
    """Fails if a run was not completed, or without some files."""
    collect_as_usual()
    if words:
        # Before anything is requested: a mistyped word is reported at once.
        perform(operations.syncs.targets, {"target": words})
        all_ok = True
    else:
        names = perform(operations.syncs.discover, {"allow_mass_delete": allow_mass_delete})
        words, all_ok = names.items, _report(names)
    requested: list[operations.runs.Run] = []
    ended: list[operations.runs.RunDetail] = []

    def request(word: str) -> operations.runs.Run:
        options = {"full": full, "allow_mass_delete": allow_mass_delete}
        requested.append(perform.request(operations.syncs.sync_target, {"target": word, **options}))
        return requested[-1]

    try:
        # Workers execute several runs at a time. Without workers, request each run when its turn comes, so that an
        # interrupt leaves nothing in the queue.
        queued = [request(word) for word in words] if len(words) > 1 and perform.has_workers() else []
        for number, word in enumerate(words):
            run = perform.follow(queued[number] if queued else request(word), queued[number + 1 :])
            ended.append(run)
            say(summary(run), *_problem_lines(perform, run))
    finally:
        for left in requested[len(ended) :]:
            perform.withdraw(left)
    all_ok = all_ok and all(run.status == "completed" and not run.files_failed for run in ended)
    return Result({"items": [run.summary for run in ended]}, [], exit_code=0 if all_ok else FAILED)


def _report(names: operations.syncs.Names) -> bool:
    """What needs attention; whether all groups were listed."""
    for group in names.groups:
        for former, name in group.renamed:
            warn(name, f"renamed, with its project: it was {former}")
        for name, path in group.kept_names:
            warn(name, f"is project {path}, whose name a different repository has")
        for name, reason in group.paused:
            warn(name, f"paused: {reason}")
        if group.problem:
            warn(f"group {group.group}", group.problem)
    for name, reason in names.left_out.items():
        warn(name, f"left out: {reason}")
    return not any(group.problem for group in names.groups)


def _problem_lines(perform: Performer, run: operations.runs.RunDetail) -> list[str]:
    """The first failed files, and the number of files by reason."""
    counts = run.problem_counts
    failed: list[operations.runs.RunProblem] = []
    if FAILED_FILE in counts:
        filters = {"reason": FAILED_FILE, "limit": NAMED_FAILURES}
        failed = perform(operations.runs.problems, filters, run_id=run.id).items
    lines = [f"  failed: {escape_unprintable(file.path)}  {escape_unprintable(file.detail)}" for file in failed]
    reasons = ", ".join(f"{number:,} {reason.replace('_', ' ')}" for reason, number in sorted(counts.items()))
    title = "failed or skipped" if failed else "skipped"
    return [*lines, f"  {title}: {reasons} (reposync runs show {run.id})"] if counts else []


def _plans(perform: Performer, words: list[str], *, full: bool) -> Result:
    """One plan for each target, without any write."""
    if not words:
        names = perform(operations.syncs.targets)
        _report(names)
        words = names.items
    plans = [perform(operations.syncs.plan, {"target": word, "full": full}) for word in words]
    return Result({"items": plans}, map(_plan_text, plans))


def _plan_text(plan: operations.syncs.Plan) -> str:
    lines = [f"{escape_unprintable(plan.repository)}: {short(plan.commit_before)} -> {short(plan.commit)}"]
    if not (plan.files_to_read or plan.files_to_delete or plan.files_to_skip or plan.chunks_to_embed):
        lines.append("  nothing to do")
    else:
        lines += [
            f"  files   {plan.files_to_store:,} to store, {plan.files_to_delete:,} to delete, "
            f"{plan.files_to_skip:,} to skip, {plan.files_renamed:,} renamed, {plan.files_unchanged:,} unchanged",
            f"  chunks  {plan.chunks:,}, of which {plan.chunks_to_embed:,} to embed "
            f"({plan.characters_to_embed:,} characters)",
        ]
    lines += [f"  {text}" for text in (plan.index_notice, plan.blocked) if text]
    return "\n".join(lines)
