"""Finds secrets in text, offline: Kingfisher's rules for what providers issue, and our own for the rest.

Kingfisher's scanner alone is used, never its validator, which would ask providers. Loading its rules takes 0.7 s of CPU
time with their compiled cache, and 7 s without. So they are loaded before the first text that can contain a secret.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import math
import os
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import re2  # type: ignore[import-untyped]

from reposync.content.masking import masked
from reposync.content.secret_policy import SecretAction, SecretPolicy
from reposync.finding import Finding as Finding

if TYPE_CHECKING:
    from kingfisher_sdk.scanner import Scanner


class RulesUnavailable(Exception):
    """The rules cannot be loaded: nothing may be indexed."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """`text`: with masks."""

    text: str
    findings: tuple[Finding, ...] = ()

    @property
    def is_skipped(self) -> bool:
        return any(finding.action == SecretAction.SKIP for finding in self.findings)


class _Place(NamedTuple):
    """In bytes of UTF-8. `is_generic`: a secret by its name and look."""

    start: int
    end: int
    rule: str
    is_generic: bool


# Masked text may match a rule that looks around the value: a text is scanned until nothing is found.
_ROUNDS: Final = 4
# Shorter values may be ordinary words elsewhere in the file.
_REPEATED_BYTES: Final = 16
# Invisible findings are parts of a pair, of which a name (an account, a client id) is no secret.
_SECRET_PART: Final = re.compile(r"secret|password|private|token")
_KINGFISHER_NAME: Final = re.compile(r"^(?:betterleaks|kingfisher|custom)\.|^veles\.secrets/|\.\d+$")

_IN_RUN: Final = rb"[A-Za-z0-9_+/=.~$-]"
_LEAST_RUN: Final = 13
_MAY_HOLD: Final = re2.compile(
    # By RE2 in one pass: with `re` it took five times as long as the search itself.
    b"|".join(
        [
            rb"(?i:passw|secret|curl|-----BEGIN)",
            rb"://[^\s/]{0,300}@",
            *(b"%s{%d}[0-9]%s{%d}" % (_IN_RUN, at, _IN_RUN, _LEAST_RUN - 1 - at) for at in range(_LEAST_RUN)),
            *(
                b"%s{%d}(?:[a-z][A-Z]|[A-Z]{2})%s{%d}" % (_IN_RUN, at, _IN_RUN, _LEAST_RUN - 2 - at)
                for at in range(_LEAST_RUN - 1)
            ),
        ]
    )
)
"""What every text has that a rule of Kingfisher matches: the name of something whose value may be short, credentials of
a URL, or a long run with a digit or mixed case."""

# Our own rules -------------------------------------------------------------------------------------------------------

_PROVIDERS: Final = (
    ("discord-webhook", re2.compile(rb"discord(?:app)?\.com/api/webhooks/[0-9]{17,20}/([A-Za-z0-9_-]{60,80})")),
    ("telegram-bot-token", re2.compile(rb"\b([0-9]{8,10}:AA[A-Za-z0-9_-]{33})(?:[^A-Za-z0-9_-]|$)")),
    ("azure-storage-key", re2.compile(rb"AccountKey\s{0,3}=\s{0,3}([A-Za-z0-9+/]{86}==)")),
    (
        "private-key",
        re2.compile(
            rb"(-----BEGIN (?:[A-Z0-9]{1,20} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
            rb"(?:[\s\\rn\"',+]{0,24}[A-Za-z0-9+/=]{40,100})+(?:[\s\\rn]{0,8}[A-Za-z0-9+/=]{1,100}[\s\\rn]{0,8}-----END)?)"
        ),
    ),
)
"""Kinds that Kingfisher lacks, or finds only beside other words. The first group is the secret."""

_URL_PASSWORD: Final = re2.compile(
    rb"[a-z][a-z0-9+.-]{1,20}://[^\s/?#\"'<>@:]{0,128}:([^\s/?#\"'<>@]{8,128})@[A-Za-z0-9]"
)
_AWS_KEY_ID: Final = re2.compile(rb"\b((?:AKIA|ASIA)[A-Z2-7]{16})\b")
_KUBERNETES: Final = re2.compile(rb"(?m)^kind:\s*[\"']?Secret[\"']?\s*$")
_KUBERNETES_DATA: Final = re2.compile(
    rb"(?m)^[ \t]+[\w.-]{1,200}:[ \t]*[\"']?([A-Za-z0-9+/]{16,}={0,2})[\"']?[ \t]*\r?$"
)
_NAMED: Final = re2.compile(
    rb"(?i)(?:secret|passw(?:or)?d|passwd|token|api[_.-]?key|access[_.-]?key|private[_.-]?key|credential)[\w.-]{0,30}"
    # `name = value`, `name: type = value`, `"name": value`, `name => value`, `name := value`, `<name>value`, and
    # `<add key="name" value="value"/>`.
    rb"[\"'\]]{0,2}"
    rb"(?:\s{0,3}:\s{0,3}[A-Za-z_&'][\w.<>\[\]|&' ]{0,40}=|\s{0,3}(?:=>|:=|[=:>(])|\s{1,3}value\s{0,3}=)\s{0,3}"
    rb"(?:[bBrRuU]?[\"'`]([^\s\"'`]{12,200})[\"'`]|([A-Za-z0-9+/=_.~!@#$%^&*-]{12,200})(?:[\s;,<&}]|$))"
)
_PLACEHOLDER: Final = re.compile(
    rb"(?i)\$\{|\{\{|%\(|%s|<|\*{3}|x{4}|\.{3}|example|sample|dummy|changeme|placeholder|your[_-]|redacted|0{6}|12345|abcde"
)
# Without quotes it may be a name in code, such as `base64_token_2`.
_DOTTED: Final = re.compile(rb"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_NUMBERS: Final = re.compile(rb"[0-9]+[^0-9]+[0-9]")
_LEAST_ENTROPY: Final = 3.4
"""Bits a character. Of random letters and digits, 12 have 3.5 on average."""


@dataclass(slots=True)
class SecretScanner:
    """Not thread-safe. `rules_folder`: of the compiled rules; None: they are compiled each time. `loading` is entered
    while the rules are loaded, which takes up to 10 s."""

    rules_folder: str | None = None
    loading: Callable[[], AbstractContextManager[None]] = nullcontext
    _rules: Scanner | None = field(default=None)

    def scan(self, text: str, policy: SecretPolicy) -> Scanned:
        """`text` with its secrets masked or reported, as `policy` says. Raises RulesUnavailable."""
        findings: dict[Finding, None] = {}
        for _ in range(_ROUNDS):
            scanned = self._once(text, policy)
            findings |= dict.fromkeys(scanned.findings)
            if scanned.text == text:
                break
            text = scanned.text
        return Scanned(text, tuple(sorted(findings, key=lambda each: (each.line, each.rule, each.fingerprint))))

    def _once(self, text: str, policy: SecretPolicy) -> Scanned:
        content = text.encode("utf-8", "replace")  # as many characters
        findings: dict[Finding, None] = {}
        values: dict[bytes, str] = {}
        spans: list[tuple[int, int, str]] = []
        allowed = frozenset(policy.allow_values)
        known = bytearray(len(content))
        line_ends: list[int] = []
        for match in self._matches(content, policy):
            action = policy.generic if match.is_generic else policy.action
            value = content[match.start : match.end]
            if action is SecretAction.OFF or (allowed and hashlib.sha256(value).hexdigest() in allowed):
                continue
            if known.find(0, match.start, match.end) < 0:
                continue
            known[match.start : match.end] = b"\1" * len(value)
            line_ends = line_ends or [end.start() for end in re.finditer(b"\n|$", content)]
            finger = hmac.new(policy.key, value, hashlib.sha256).hexdigest()[:16]
            findings[Finding(bisect_left(line_ends, match.start) + 1, match.rule, finger, str(action))] = None
            if action is SecretAction.MASK:
                spans.append((match.start, match.end, match.rule))
                if len(value) >= _REPEATED_BYTES:
                    values.setdefault(value, match.rule)
        for value, rule in values.items():
            spans += ((start, start + len(value), rule) for start in _occurrences(content, value))
        if not spans:
            return Scanned(text, tuple(findings))
        if not content.isascii():
            spans = _in_characters(content, spans)
        return Scanned(masked(text, spans), tuple(findings))

    def _matches(self, content: bytes, policy: SecretPolicy) -> Iterator[_Place]:
        """Known kinds first: a generic match of the same value is the same secret."""
        if policy.action is not SecretAction.OFF:
            # Also if the rules are loaded: what is found does not depend on the texts before.
            if may_hold_secret(content):
                yield from self._of_kingfisher(content)
            for rule, pattern in _PROVIDERS:
                for match in pattern.finditer(content):
                    yield _place(match, rule, group=1, is_generic=False)
            for match in _URL_PASSWORD.finditer(content):
                if _looks_random(match.group(1), least=2.8):
                    yield _place(match, "url-password", group=1, is_generic=False)
        if policy.generic is not SecretAction.OFF:
            yield from _generic(content)

    def _of_kingfisher(self, content: bytes) -> Iterator[_Place]:
        for found in self._loaded().scan(content):
            rule = found.rule_id
            if found.visible or _SECRET_PART.search(rule):
                place = found.location
                yield _Place(place["start_offset"], place["end_offset"], _KINGFISHER_NAME.sub("", rule), False)

    def _loaded(self) -> Scanner:
        if self._rules is None:
            with self.loading():
                self._rules = load_rules(self.rules_folder)
        return self._rules


def load_rules(folder: str | None) -> Scanner:
    """Raises RulesUnavailable."""
    try:
        if folder is not None:
            os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103 - pathlib's ignores the mode of parents
        from kingfisher_sdk.rules import Rules
        from kingfisher_sdk.scanner import Scanner

        with _alone(folder):
            rules = Rules(cache=folder is not None, cache_dir=folder)
        if not len(rules):
            raise RulesUnavailable("there are none")
        return Scanner(rules)
    except RulesUnavailable:
        raise
    except Exception as error:
        raise RulesUnavailable(f"{type(error).__name__}: {error}") from error


@contextmanager
def _alone(folder: str | None) -> Iterator[None]:
    """While the first process compiles the rules, the others wait for what it stores."""
    with ExitStack() as until_loaded:
        with suppress(OSError):  # then each compiles them
            if folder is not None and not any(Path(folder).glob("*.vscdb")):
                lock = until_loaded.enter_context((Path(folder) / "lock").open("wb"))
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def may_hold_secret(content: bytes) -> bool:
    """Whether a rule of Kingfisher may match."""
    return _MAY_HOLD.search(content) is not None


def _generic(content: bytes) -> Iterator[_Place]:
    for match in _AWS_KEY_ID.finditer(content):
        yield _place(match, "aws-access-key-id", group=1, is_generic=True)
    if _KUBERNETES.search(content):
        for match in _KUBERNETES_DATA.finditer(content):
            yield _place(match, "kubernetes-secret", group=1, is_generic=True)
    for match in _NAMED.finditer(content):
        group = 1 if match.group(1) is not None else 2
        value = match.group(group)
        if _looks_random(value, least=_LEAST_ENTROPY) and (
            group == 1 or (_NUMBERS.search(value) and not _DOTTED.fullmatch(value))
        ):
            yield _place(match, "named-secret", group=group, is_generic=True)


def _place(match: Any, rule: str, *, group: int, is_generic: bool) -> _Place:
    start, end = match.span(group)
    return _Place(start, end, rule, is_generic)


def _looks_random(value: bytes, *, least: float) -> bool:
    """Letters and digits, no placeholder, and enough entropy."""
    letters, digits = re.search(rb"[A-Za-z]", value), re.search(rb"[0-9]", value)
    if not letters or not digits or b"\xc2\xb7" in value or _PLACEHOLDER.search(value):
        return False
    return _entropy(value) >= least


def _entropy(value: bytes) -> float:
    size = len(value)
    return -sum(count / size * math.log2(count / size) for count in Counter(value).values())


def _occurrences(content: bytes, value: bytes) -> Iterator[int]:
    """A rule may need words that do not stand beside each of them."""
    at = content.find(value)
    while at >= 0:
        yield at
        at = content.find(value, at + len(value))


def _in_characters(content: bytes, spans: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    def whole(offset: int, step: int) -> int:
        while 0 < offset < len(content) and content[offset] & 0xC0 == 0x80:
            offset += step
        return offset

    wholes = [(whole(start, -1), whole(end, 1), rule) for start, end, rule in spans]
    at, before, characters = dict[int, int](), 0, 0
    for offset in sorted({offset for start, end, _ in wholes for offset in (start, end)}):
        characters += len(content[before:offset].decode())
        at[offset], before = characters, offset
    return [(at[start], at[end], rule) for start, end, rule in wholes]
