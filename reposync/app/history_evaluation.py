"""How well search finds what the last commits and merge requests of a repository changed, by what they say."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import islice

from pydantic import ValidationError

from reposync.app.application import Application
from reposync.app.replay import open_replay
from reposync.catalog.targets import SyncTarget
from reposync.errors import NoQuestions, NothingIndexed
from reposync.next_steps import Sync
from reposync.search.documents import HistoryScores, PastAnswer
from reposync.search.evaluation import DEPTH, Found, Question, ranks_of
from reposync.search.measuring import figures, found_by, main_of, worst_first, worst_folders
from reposync.search.past_questions import RULES, Chosen, LeftOut, PastQuestion, chosen, judged, narrowed, without_space
from reposync.search.query import By, read_query
from reposync.sources.history import state_before
from reposync.sources.objects import UnreadableBlobs
from reposync.sources.port import MergedRequest, PastCommit, Source, TreeEntry
from reposync.store.tables import IndexVersion, VersionState
from reposync.supervision import in_thread
from reposync.sync.shown_texts import mask_texts
from reposync.vectors.port import SearchHit

MAX_STATES = 20
"""Of a replay. Each costs a sync of what changed since the one before; up to so many questions have a state each."""
COMMITS_PER_QUESTION = 6
"""Read, at most: a third to an eighth of the commits of public repositories are questions."""
MAX_COMMITS = 10_000
_SPARE = 1.25
"""Questions that are compared for white space, for each one that is wanted."""


@dataclass(frozen=True, slots=True)
class PastChanges:
    """What the source says about the commits before the state that is searched."""

    commits: Sequence[PastCommit]
    requests: Sequence[MergedRequest]


async def evaluate_history(
    app: Application, name: str, last: int, *, replay: bool = False, identity: str | None = None
) -> HistoryScores:
    """Scored with the live index, which has the changes; with `replay`, with the index of past states that do not have
    them. Raises RepositoryNotFound, NothingIndexed, NoQuestions, ReplayFailed, and what source, index, embedder and
    store raise."""
    row = await app.repositories.get(name, identity)
    target = app.catalog.of_row(row)
    version, held = await _live(app, target)
    source = app.source(target)
    try:
        past = await read_past(source, held, last)
        indexed = None if replay else await _indexed(app, version)
        picked = await pick(app, target, source, past, indexed, last)
    finally:
        await source.close()
    if replay:
        scores = await _replayed(app, target, past, picked)
    else:
        answers = await _answered(app, app, target, version, picked.questions)
        scores = await _scores(app, target, held, answers, picked.left_out)
    await app.repositories.get(name, identity)  # whose name it still is: searches are by name
    return scores


async def _indexed(app: Application, version: IndexVersion) -> dict[str, bool]:
    return {path: row.chunks > 0 for path, row in (await app.manifests.load(version.id)).items()}


async def _live(app: Application, target: SyncTarget) -> tuple[IndexVersion, str]:
    """The version that is searched, and its commit."""
    for version in await app.versions.of(target.row.id):
        if version.state is VersionState.LIVE and version.held_commit:
            return version, version.held_commit
    raise NothingIndexed(f"Nothing of {target.name!r} is indexed yet.", next_steps=[Sync(target.name)])


async def read_past(source: Source, tip: str, last: int) -> PastChanges:
    commits = await source.history(tip, min(MAX_COMMITS, last * COMMITS_PER_QUESTION))
    return PastChanges(commits, await source.merged_requests(last) if commits else [])


async def pick(
    app: Application,
    target: SyncTarget,
    source: Source,
    past: PastChanges,
    indexed: Mapping[str, bool] | None,
    last: int,
) -> Chosen:
    """The questions of the last commits, with secrets masked. Raises NoQuestions, SecretRulesUnavailable, and what the
    source raises."""
    verdicts = await in_thread(lambda: list(judged(past.commits, past.requests, indexed)))
    likely = (each for _, each in verdicts if isinstance(each, PastQuestion))
    unchanged = await _unchanged(source, list(islice(likely, int(last * _SPARE) + 10)), target)
    picked = await in_thread(partial(chosen, verdicts, unchanged, last))
    if not picked.questions:
        raise _no_questions(target.name, len(past.commits), picked.left_out)
    return picked


def _no_questions(name: str, read: int, left_out: Mapping[LeftOut, int]) -> NoQuestions:
    reasons = ", ".join(f"{count:,} {RULES[rule]}" for rule, count in left_out.items())
    because = f": {reasons}" if reasons else ""
    return NoQuestions(f"None of the {read:,} commits of {name!r} that could be read is a question{because}.")


async def _unchanged(source: Source, questions: Sequence[PastQuestion], target: SyncTarget) -> set[tuple[str, str]]:
    """Pairs of blobs that differ in white space alone."""
    pairs = [
        (change.before, change.after)
        for question in questions
        for change in question.changes
        if change.before is not None and change.after is not None and change.before.sha != change.after.sha
    ]
    entries = [entry for pair in pairs for entry in pair]
    digests = await _digests(source, entries, target.repository.max_file_bytes)
    return {
        (before.sha, after.sha)
        for before, after in pairs
        if (digest := digests.get(before.sha)) is not None and digest == digests.get(after.sha)
    }


async def _digests(source: Source, entries: Sequence[TreeEntry], max_bytes: int) -> dict[str, bytes]:
    """Of the contents without white space, by blob. One that is too large, or cannot be read, has none."""
    found: dict[str, bytes] = {}
    if not entries:
        return found
    try:
        async with aclosing(source.read(entries, max_bytes=max_bytes)) as blobs:
            async for blob in blobs:
                if blob.content is not None:
                    found[blob.sha] = hashlib.sha256(without_space(blob.content)).digest()
    except UnreadableBlobs:
        pass  # such a commit is a question: whether it changed white space alone is not known
    return found


# Scores --------------------------------------------------------------------------------------------------------------


async def _replayed(app: Application, target: SyncTarget, past: PastChanges, picked: Chosen) -> HistoryScores:
    """Oldest questions first, so that each state follows the one before."""
    tip, left_out, answers, newest = past.commits[0].sha, Counter(picked.left_out), list[PastAnswer](), ""
    size = -(-len(picked.questions) // MAX_STATES)
    groups = [picked.questions[at : at + size] for at in range(0, len(picked.questions), size)]
    states = 0
    async with open_replay(app, target) as replay:
        for group in reversed(groups):
            state = await in_thread(partial(state_before, past.commits, tip, {each.commit for each in group}))
            if state is None:
                left_out[LeftOut.FIRST] += len(group)
                continue
            version = await replay.bring_to(state)
            questions = narrowed(group, await _indexed(replay.app, version), left_out)
            if questions:
                answers += await _answered(replay.app, app, target, version, questions)
                states, newest = states + 1, state
    if not answers:
        raise _no_questions(target.name, len(past.commits), left_out)
    return await _scores(app, target, newest, answers, left_out, states=states)


async def _answered(
    searched: Application,
    app: Application,
    target: SyncTarget,
    version: IndexVersion,
    questions: Sequence[PastQuestion],
) -> list[PastAnswer]:
    """`searched`: whose index is searched, in which the repository has the same name. `version`: its live version.
    Raises what a search does, and SecretRulesUnavailable."""
    texts = await mask_texts(app.content, [each.text for each in questions], target.settings().secrets)
    pairs = [(past, _asked(target, past, text)) for past, text in zip(questions, texts, strict=True)]
    asked = [(past, question) for past, question in pairs if question is not None]
    spec = await searched.index(version.physical).spec()
    has_meaning = spec is not None and spec.dimension > 0 and version.meaning_pending is None
    ways = list(By) if has_meaning else [By.WORDS]
    # The live index may know what the commits of the questions say.
    is_replay, wanted = searched is not app, [question for _, question in asked]
    found = {way: await ask(searched, wanted, way, with_commits=is_replay) for way in ways}
    return [
        PastAnswer(
            question.question,
            list(past.paths),
            past.commit,
            past.request,
            {way.value: list(found[way][number].ranks) for way in ways},
            {way.value: found[way][number].first for way in ways},
        )
        for number, (past, question) in enumerate(asked)
    ]


async def _scores(
    app: Application,
    target: SyncTarget,
    commit: str,
    answers: Sequence[PastAnswer],
    left_out: Mapping[LeftOut, int],
    *,
    states: int = 0,
) -> HistoryScores:
    ways = [way.value for way in By if all(way.value in each.ranks for each in answers)]
    main = main_of(ways)
    by = {way: await in_thread(partial(figures, [found_by(each, way) for each in answers])) for way in ways}
    return HistoryScores(
        repository=target.name,
        commit=commit,
        states=states,
        model=(await app.embedder().spec()).model if len(ways) > 1 else None,
        at=app.now(),
        questions=len(answers),
        left_out={rule.value: left_out[rule] for rule in LeftOut if left_out.get(rule)},
        by=by,
        worst_folders=worst_folders(answers, main),
        answers=worst_first(answers, main),
    )


def _asked(target: SyncTarget, past: PastQuestion, text: str) -> Question | None:
    try:
        return Question(question=text, repository=target.name, paths=past.paths)
    except ValidationError:
        return None  # nothing but a secret, or a path that no hit has


async def ask(
    app: Application, questions: Sequence[Question], by: By = By.BOTH, *, with_commits: bool = True
) -> list[Found]:
    """Search for each question in its repository. `with_commits`: what past commits say of files decides, too. Raises
    what a search does."""
    searching = app.searching if with_commits else app.searching.without_commits()

    async def search(question: Question) -> Sequence[SearchHit]:
        query = read_query(question.question, repository=question.repository)
        work: Callable[[], Awaitable[list[SearchHit]]] = partial(searching.search, query, limit=DEPTH, by=by)
        with app.observer.measure("search_duration_seconds", "search"):
            return await app.searches.search(work)

    return await ranks_of(questions, search)
