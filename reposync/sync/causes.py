"""Why most of an index would go: what a person looks at first."""

from __future__ import annotations

from reposync.errors import DeletionBlocked, SourceError
from reposync.sources.paths import path_bytes
from reposync.sources.port import Source
from reposync.sync.brake import VANISHED, Losses
from reposync.sync.target import SyncSettings, Target
from reposync.sync.versions import Situation

_ATTRIBUTES = {"vendored": "linguist-vendored", "generated": "linguist-generated"}


async def with_cause(
    error: DeletionBlocked, source: Source, situation: Situation, target: Target, settings: SyncSettings, losses: Losses
) -> DeletionBlocked:
    """The same error with the likely cause in its message, where one is found."""
    if not losses.counts:
        return error
    reason = losses.counts.most_common(1)[0][0]
    if reason == VANISHED:
        cause = await _other_branch(source, situation, settings)
    else:
        cause = _rule(reason, *losses.examples[reason], target, settings)
    if cause is None:
        return error
    explained = DeletionBlocked(f"{error.message} The likely cause: {cause}.", remedy=error.remedy)
    explained.facts = error.facts
    return explained


async def _other_branch(source: Source, situation: Situation, settings: SyncSettings) -> str | None:
    before = situation.live.branch_name if situation.live is not None else None
    try:
        now = await source.branch(fresh=True)
    except SourceError:
        return None  # only an explanation
    if before is None or now is None or before == now:
        return None
    default = "the branch" if settings.branch is not None else "the default branch"
    return f"{default} changed from {before} to {now}"


def _rule(reason: str, path: str, detail: str, target: Target, settings: SyncSettings) -> str | None:
    if reason == "not_included":
        return f"`include: {list(settings.include)}` of the registry matches no path like {path}"
    if reason == "excluded":
        return f"{path} {detail}, `exclude` of the registry"
    name = _ATTRIBUTES.get(reason)
    rule = target.rules.attributes.rule(path_bytes(path), name) if name is not None else None
    if rule is not None:
        file, pattern = rule
        return f"the rule `{pattern} {name}` of {file.decode(errors='replace')}"
    return f"{path} is {detail}" if detail else None
