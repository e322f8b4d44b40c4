"""Paths and messages of a source pass the rules for secrets too, before history, logs and pages have them.

Kingfisher's rules take 0.7 s of CPU time and 50 MB, so content workers alone load them: a text that a rule may match is
sent to one. Where no worker is at hand, as in a web request, `telemetry.redaction` has shapes of what providers issue.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from reposync.content.masking import masked
from reposync.content.model import Skip, Skipped
from reposync.content.secret_policy import SecretAction, SecretPolicy
from reposync.content.secrets import Finding, Scanned, may_hold_secret
from reposync.errors import RepoSyncError, SecretRulesUnavailable
from reposync.paths import path_bytes, path_text
from reposync.store.columns import path_key
from reposync.sync.content_pool import ContentPool, WorkerDied
from reposync.sync.prepare import TextJob
from reposync.sync.target import TargetTree

IN_PATH: Final = 0
"""The line of a secret that is in the path of its file."""

_AT_ONCE: Final = 1_000
_TRIES_ALONE: Final = 2
_SECRET_PATH: Final = Skipped(Skip.SECRET, "its path holds a secret")
# Names of what our own rules find, whose values may be shorter than those of providers.
_NAMES: Final = re.compile(rb"(?i)token|key|credential")


async def scan_texts(pool: ContentPool, texts: Sequence[str], policy: SecretPolicy) -> dict[int, Scanned]:
    """The texts in which anything was found, by number; `skip` masks them too. A text that ends its worker is
    masked as a whole. Raises SecretRulesUnavailable."""
    if policy.is_off:
        return {}
    policy = replace(policy, action=_shown(policy.action), generic=_shown(policy.generic))
    found: dict[int, Scanned] = {}
    for first in range(0, len(texts), _AT_ONCE):
        page = tuple(texts[first : first + _AT_ONCE])
        if await asyncio.to_thread(_may_hold_secret, page):
            scans = await _scanned(pool, page, policy)
            found |= {first + number: scanned for number, scanned in scans.items()}
    return found


def _shown(action: SecretAction) -> SecretAction:
    return SecretAction.MASK if action is SecretAction.SKIP else action


def _may_hold_secret(texts: Sequence[str]) -> bool:
    content = "\n".join(texts).encode("utf-8", "replace")
    return may_hold_secret(content) or bool(_NAMES.search(content))


async def _scanned(pool: ContentPool, texts: tuple[str, ...], policy: SecretPolicy) -> dict[int, Scanned]:
    for _ in range(1 if len(texts) > 1 else _TRIES_ALONE):
        try:
            return (await pool.scan_texts(TextJob([texts], policy)))[0]
        except WorkerDied:
            pass
    if len(texts) == 1:
        hidden = masked(texts[0], [(0, len(texts[0]), "unscanned")])
        return {0: Scanned(hidden, (Finding(1, "unscanned", _fingerprint(texts[0], policy), SecretAction.MASK),))}
    half = len(texts) // 2
    later = await _scanned(pool, texts[half:], policy)
    return await _scanned(pool, texts[:half], policy) | {half + number: each for number, each in later.items()}


def _fingerprint(text: str, policy: SecretPolicy) -> str:
    return hmac.new(policy.key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:16]


# Messages -------------------------------------------------------------------------------------------------------------


async def mask_texts(pool: ContentPool, texts: Sequence[str], policy: SecretPolicy) -> list[str]:
    """Raises SecretRulesUnavailable."""
    found = await scan_texts(pool, texts, policy)
    return [found[number].text if number in found else text for number, text in enumerate(texts)]


async def mask_error(pool: ContentPool, error: RepoSyncError, policy: SecretPolicy, known: str) -> None:
    """Servers and git quote what they were asked for, and more. `known`: an address, which is no secret, in most of
    them: it does not make a worker load the rules."""
    texts = [error.message, *([error.remedy] if error.remedy else [])]
    plain = [text.replace(known, "") for text in texts]
    if not _may_hold_secret(plain):
        return
    try:
        shown = await mask_texts(pool, texts, policy)
    except SecretRulesUnavailable:  # then nothing was read
        return
    by_text = dict(zip(texts, shown, strict=True))
    error.redact(lambda text: by_text.get(text, text))


# Paths ----------------------------------------------------------------------------------------------------------------


async def scan_paths(
    pool: ContentPool, paths: Sequence[str], policy: SecretPolicy
) -> tuple[dict[str, str], dict[str, tuple[Finding, ...]]]:
    """The paths (as `path_text`) that hold a secret, with what is shown instead; and what was found, by what
    is shown. A hash tells masked paths apart. Raises SecretRulesUnavailable."""
    raw = [path_bytes(path) for path in paths]
    wanted = [number for number, path in enumerate(raw) if not policy.allows(path)]
    # Not as `path_text`, which writes bytes that are no UTF-8 as digits.
    texts = [raw[number].decode("utf-8", "replace") for number in wanted]
    hidden: dict[str, str] = {}
    findings: dict[str, tuple[Finding, ...]] = {}
    for at, scanned in (await scan_texts(pool, texts, policy)).items():
        path = shown = paths[wanted[at]]
        if scanned.text != texts[at]:
            hidden[path] = shown = path_text(f"{scanned.text}~{_fingerprint(path, policy)[:8]}".encode())
        findings[shown] = tuple(replace(finding, line=IN_PATH) for finding in scanned.findings)
    return hidden, findings


async def hide_paths(pool: ContentPool, target: TargetTree, known: Sequence[Collection[str]]) -> TargetTree:
    """The tree, in which a path that holds a secret is masked, and its file skipped. `known`: paths that passed the
    same rules before; those that hold something are scanned again. Raises SecretRulesUnavailable."""
    if target.secrets.is_off:
        return target

    def new_paths() -> list[str]:
        # A path with a finding is in the listing of a version only if it was not masked, but reported.
        reported = {key for key, line in target.masked.items() if line == IN_PATH}
        paths = (path_text(entry.path) for entry in target.tree.entries)
        return [path for path in paths if not any(path in each for each in known) or path_key(path) in reported]

    hidden, findings = await scan_paths(pool, await asyncio.to_thread(new_paths), target.secrets)
    if not findings:
        return target
    return await asyncio.to_thread(_hidden, target, hidden, findings)


def _hidden(target: TargetTree, hidden: Mapping[str, str], findings: Mapping[str, tuple[Finding, ...]]) -> TargetTree:
    by_path = {path_bytes(path): path_bytes(shown) for path, shown in hidden.items()}
    entries = [
        replace(entry, path=by_path[entry.path]) if entry.path in by_path else entry for entry in target.tree.entries
    ]
    skipped = {path: reason for path, reason in target.skipped.items() if path not in by_path}
    skipped |= {shown: target.skipped.get(path, _SECRET_PATH) for path, shown in by_path.items()}
    return replace(
        target, tree=replace(target.tree, entries=entries), skipped=skipped, hidden=hidden, in_paths=findings
    )
