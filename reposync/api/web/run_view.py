"""What the page of a run shows beside its document: steps, words for what became of attempts, and folders of files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from reposync.operations.runs import Brake, RunDetail

MAX_DEPTH = 30
"""Folders in folders of the tree; what is below is part of a file's name. A path from a repository may have 2,000."""

StepState = Literal["done", "now", "next", "stopped"]

OUTCOMES: Mapping[str, str] = {
    "yielded": "It had had its share of time, and let waiting runs go first; the next attempt continued from there.",
    "released": "This worker could not execute it now, and handed it back.",
    "lost": "Its worker died, froze, or could not write to the database; what it had stored was kept.",
}
"""What ended an attempt that did not end the run."""
TRIGGERS: Mapping[str, str] = {
    "schedule": "Schedule",
    "webhook": "Push",
    "http": "HTTP request",
    "command": "Command",
    "removal": "Removal",
}
PAGE_BUTTON = "Button on a page"
_PAGE = "page"
"""Name of those who use a page without a login."""


def trigger_words(run: Any, asked_by: Sequence[str] = ()) -> str:
    """Why there is the run: `Push`; a word of a newer version as it is."""
    trigger = "removal" if run.removal else str(run.trigger)
    askers = asked_by or run.asked_by
    if trigger == "http" and askers and all(name == _PAGE or name.endswith("in a browser") for name in askers):
        return PAGE_BUTTON
    return TRIGGERS.get(trigger, trigger)


# Steps ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a run, as in a pipeline. `phases`: the phases of its progress. `seconds`: how long it took so
    far, if that was reported."""

    label: str
    phases: tuple[str, ...]
    state: StepState = "next"
    seconds: float | None = None


_LIST = Step("List", ("starting", "listing", "planning"))
_CHECK, _DONE = Step("Check", ("checking", "purging secrets")), Step("Done", ("done",))
_WORDS_FIRST = (_LIST, Step("Words", ("words",)), Step("Meaning", ("indexing",)), _CHECK, _DONE)
_AT_ONCE = (_LIST, Step("Index", ("indexing",)), _CHECK, _DONE)


def steps_of(run: RunDetail) -> list[Step]:
    """The steps of the latest attempt; none of a run that no worker has begun, or that had nothing to do."""
    if not run.attempt or run.removal:
        return []
    reported, took = run.progress or {}, run.step_seconds
    phase = str(reported.get("phase", "starting"))
    is_words_first = "words" in (phase, *took)
    steps = _WORDS_FIRST if is_words_first else _AT_ONCE
    if is_words_first and phase == "checking" and "indexing" not in took:
        phase = "words"  # what was stored so far is checked
    if run.is_final and run.status != "completed":
        reached = max((number for number, step in enumerate(steps) if set(step.phases) & took.keys()), default=0)
    elif run.status == "running":
        reached = next((number for number, step in enumerate(steps) if phase in step.phases), 0)
    else:
        reached = len(steps) if run.is_final else 0
    found = []
    for number, step in enumerate(steps):
        state: StepState = "done" if number < reached else "next"
        if number == reached:
            state = "stopped" if run.is_final else "now" if run.status == "running" else "next"
        seconds = [took[each] for each in step.phases if each in took]
        found.append(Step(step.label, step.phases, state, sum(seconds) if seconds else None))
    return found


# Folders --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Folder:
    """`count`: how many files are in it and below."""

    name: str
    count: int = 0
    folders: dict[str, Folder] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)


def folder_tree(paths: Iterable[str], counts: Mapping[str, int]) -> Folder:
    """The tree of these paths, which may be the first of more: `counts` are of all, by folder at the top. A folder with
    nothing but a folder is one with it."""
    top = Folder("")
    for path in paths:
        *folders, name = path.split("/", MAX_DEPTH)
        inner = top
        inner.count += 1
        for each in folders:
            inner = inner.folders.setdefault(each, Folder(each))
            inner.count += 1
        inner.files.append(name)
    for name, count in counts.items():
        if name:
            top.folders.setdefault(name, Folder(name)).count = count
    top.count = max(top.count, sum(counts.values()))
    top.folders = {name: _joined(folder) for name, folder in top.folders.items()}
    return top


def _joined(folder: Folder) -> Folder:
    while len(folder.folders) == 1 and not folder.files:
        (inner,) = folder.folders.values()
        if inner.count != folder.count:
            break
        folder = Folder(f"{folder.name}/{inner.name}", folder.count, inner.folders, inner.files)
    folder.folders = {name: _joined(inner) for name, inner in folder.folders.items()}
    return folder


_LOSSES: Mapping[str, str] = {
    "vanished": "deleted in the commit",
    "unreadable": "cannot be read",
    "excluded": "excluded by the rules",
    "not_included": "match no include pattern",
    "vendored": "count as vendored",
    "generated": "count as generated",
    "too_large": "too large now",
    "secret": "hold secrets",
}


def losses_in_words(brake: Brake) -> list[tuple[int, str]]:
    return [(number, _LOSSES.get(reason, reason.replace("_", " "))) for reason, number in brake.losses.items()]


def deletes_only(brake: Brake) -> bool:
    """Whether the commit itself deletes all the files that would be lost."""
    return set(brake.losses) == {"vanished"}
