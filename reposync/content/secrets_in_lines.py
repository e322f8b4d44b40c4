"""Finds secrets in paths and messages.

A rule for code expects a quote, a space or the end of a line after the secret; in a path there is a slash or an
extension, and in a sentence a comma. So such a text is also read with spaces in place of these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from reposync.content.secret_policy import SecretPolicy
from reposync.content.secrets import Finding, Scanned, SecretScanner

# Between texts that are scanned at once: wider than the gaps that rules allow between a word and its value.
_APART: Final = "\n" * 100
_SPACES: Final = str.maketrans(dict.fromkeys("/\\,;()<>[]?&", " "))
_EXTENSION: Final = re.compile(r"\.(?=[^.\s]*(?:\s|$))")


def scan_lines(scanner: SecretScanner, texts: Sequence[str], policy: SecretPolicy) -> dict[int, Scanned]:
    """The texts in which anything was found, by number. Raises RulesUnavailable."""
    if len(texts) == 1:
        scanned = _scan(scanner, texts[0], policy)
        return {0: scanned} if scanned.findings else {}
    # Most paths of a repository hold nothing: at once, they take a tenth of the time.
    readings = (reading for text in texts for reading in _readings(text))
    if not scanner.scan(_APART.join(readings), policy).findings:
        return {}
    half = len(texts) // 2
    later = scan_lines(scanner, texts[half:], policy)
    return scan_lines(scanner, texts[:half], policy) | {half + number: scanned for number, scanned in later.items()}


def _scan(scanner: SecretScanner, text: str, policy: SecretPolicy) -> Scanned:
    shown = text
    findings: dict[tuple[int, str], Finding] = {}
    for reading in _readings(text):
        scanned = scanner.scan(reading, policy)
        for finding in scanned.findings:
            findings.setdefault((finding.line, finding.fingerprint), finding)
        changes = zip(shown, reading, scanned.text, strict=True)
        shown = "".join(before if read == masked else masked for before, read, masked in changes)
    return Scanned(shown, tuple(findings.values()))


def _readings(text: str) -> Iterator[str]:
    """As many characters each."""
    words = text.translate(_SPACES)
    yield from dict.fromkeys(
        (
            text,
            words,
            _EXTENSION.sub(" ", words),
            words.replace(".", " "),
            words.replace(".", " ").replace("-", " "),
        )
    )
