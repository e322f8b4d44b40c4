"""Redaction of text that leaves this process: the known secrets, and what has the shape of one."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple
from urllib.parse import quote, quote_plus, unquote

from reposync.config.settings import ApiToken

MASK = "***"

SHORTEST_SECRET_CHARS = 6
"""Shorter ones occur in ordinary text, which masking would make unreadable."""
_MARGIN_CHARS = 256
"""Read beyond a limit, so that the shape of a secret at the cut is seen whole."""

SECRET_VARIABLES = (
    "QDRANT_API_KEY",
    "REPOSYNC_QDRANT_API_KEY",
    "PGPASSWORD",
    "GITLAB_TOKEN",
    "CI_JOB_TOKEN",
    "EMBEDDING_API_KEY",
    "OPENAI_API_KEY",
)
"""Variables whose whole value is a secret: settings of this program, and usual names in registries. REPOSYNC_API_TOKEN
is a list of them."""

ADDRESS_VARIABLES = tuple(
    name
    for each in ("DATABASE_URL", "REDIS_URL", "QDRANT_URL", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    for name in (each, each.lower(), f"REPOSYNC_{each}")
)
"""Variables whose value is a URL that may hold a password."""

_WORDS = r"token|passw(?:or)?d|passwd|secret|api[_-]?key|private[_-]?key|access[_-]?key|secret[_-]?key|credentials?"
_WORD_HINTS = ("token", "passw", "secret", "key", "credential")
_HEADERS = (
    r"private-token|job-token|deploy-token|x-gitlab-token|(?:x-)?api-key|x-auth-token|(?:proxy-)?authorization"
    r"|(?:set-)?cookie"
)
_HEADER_HINTS = ("-token", "api-key", "authorization", "cookie")


class _Shape(NamedTuple):
    """`hints`: in lower case, one of them is in every text that `pattern` matches; most lines have none."""

    hints: tuple[str, ...]
    pattern: re.Pattern[str]
    replacement: str = MASK


# No pattern backtracks over unbounded text: a hostile line takes time linear in its length.
_SHAPES = (
    # The credentials of a URL, up to the last @ of its authority; and with a bare slash in the password.
    _Shape(("://",), re.compile(r"(://)[^\s/?#\"'<>\\]*@"), rf"\1{MASK}@"),
    _Shape(
        ("://",), re.compile(r"(://)[^\s/?#@:\"'<>]{0,200}:(?!\d{1,5}(?:[/?#]|\s|$))[^\s@\"'<>]{1,400}@"), rf"\1{MASK}@"
    ),
    # Headers as `Name: value`, as curl's arguments, and in dumps of dicts and of lists of pairs.
    _Shape(
        _HEADER_HINTS,
        re.compile(
            rf"(?i)(?<![\w-])({_HEADERS})([\"']\s{{0,3}}[:,]\s{{0,3}}b?[\"']|\s{{0,3}}[:=]\s{{0,3}}[\"']?(?![\s\"']))"
            r"[^\r\n\"']+"
        ),
        rf"\1\2{MASK}",
    ),
    _Shape(
        ("bearer", "basic"),
        re.compile(r"(?i)\b(bearer|basic)(\s{1,3})(?=\S{0,100}[0-9_~+/=]|\S{16})[A-Za-z0-9._~+/=-]{6,}"),
        rf"\1\2{MASK}",
    ),
    # key=value of queries, forms and connection strings; "key": "value" of JSON, of Python, and of JSON in JSON.
    _Shape(
        _WORD_HINTS,
        re.compile(rf"(?i)({_WORDS})(\s{{0,3}}(?:=|%3D)\s{{0,3}})(?:\"[^\"\r\n]*\"|'[^'\r\n]*'|[^\s&\"']+)"),
        rf"\1\2{MASK}",
    ),
    _Shape(
        _WORD_HINTS,
        re.compile(rf"(?i)({_WORDS})([\"']\s{{0,3}}:\s{{0,3}}b?)([\"'])(?:(?!\3)[^\\\r\n]|\\.)*\3"),
        rf"\1\2\3{MASK}\3",
    ),
    _Shape(
        _WORD_HINTS,
        re.compile(rf"(?i)({_WORDS})(\\{{1,7}}[\"']\s{{0,3}}:\s{{0,3}}\\{{1,7}}[\"'])[^\r\n\"'\\]+"),
        rf"\1\2{MASK}",
    ),
    # Documented prefixes: GitLab, OpenAI and compatible servers, Hugging Face, GitHub, webhooks, Slack, AWS, Google.
    _Shape(
        ("gl", "gr1348941", "sk-", "hf_", "gh", "github", "whsec_", "xox", "akia", "aiza"),
        re.compile(
            r"(?<![A-Za-z0-9])(?:"
            r"(?:gl(?:pat|oas|dt|rtr|rt|cbt|ptt|ft|imt|agent|wt|soat|ffct)-|GR1348941)[A-Za-z0-9_.=-]{6,}"
            r"|sk-(?=[A-Za-z_-]{0,60}\d)[A-Za-z0-9_-]{16,}"
            r"|(?:hf_|gh[pousr]_|github_pat_|whsec_)[A-Za-z0-9_+/=]{16,}"
            r"|xox[abeoprs]-[A-Za-z0-9-]{10,}|AKIA[0-9A-Z]{16}|AIza[A-Za-z0-9_-]{35})"
        ),
    ),
    # Stripe, npm, PyPI, SendGrid, DigitalOcean, Shopify, Vault, Grafana, Databricks, Docker, Twilio, Telegram, Azure,
    # webhooks of Slack and Discord.
    _Shape(
        ("k_", "npm_", "pypi-", "sg.", "_v1_", "shp", "hv", "gls", "dapi", "dckr", "sk", ":aa", "accountkey", "hooks"),
        re.compile(
            r"(?<![A-Za-z0-9])(?:[sr]k_(?:live|test)_[A-Za-z0-9]{16,}|npm_[A-Za-z0-9]{30,}|pypi-AgE[A-Za-z0-9_-]{50,}"
            r"|SG\.[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,}|do[opr]_v1_[a-f0-9]{40,}|shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{32}"
            r"|hv[bs]\.[A-Za-z0-9_-]{24,}|glsa_[A-Za-z0-9_]{32,}|dapi[a-f0-9]{32}|dckr_pat_[A-Za-z0-9_-]{20,}"
            r"|SK[a-f0-9]{32}|[0-9]{8,10}:AA[A-Za-z0-9_-]{33}|(?i:AccountKey)=[A-Za-z0-9+/]{40,}={0,2}"
            r"|hooks\.slack\.com/[A-Za-z0-9/]{20,}|discord(?:app)?\.com/api/webhooks/[0-9]{10,}/[A-Za-z0-9_-]{20,})"
        ),
    ),
    # JSON web tokens, private keys.
    _Shape(("eyj",), re.compile(r"(?<![\w-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?")),
    _Shape(
        ("private key-----",),
        re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]{0,16000}(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?"),
    ),
)

_HINTS = frozenset(hint for shape in _SHAPES for hint in shape.hints)
_LINE_BREAK = re.compile(r"\r?\n[ \t]{0,8}")
_SECRET_KEY = re.compile(rf"(?i)(?:{_WORDS}|authorization|cookie)\Z")


class Secrets:
    """The known secrets of this process. Its repr shows none of them."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values: frozenset[str] = frozenset()
        self._forms: tuple[str, ...] = ()
        self._margin_chars = _MARGIN_CHARS
        self.know(values)

    @classmethod
    def of_environment(cls, environ: Mapping[str, str] = os.environ) -> Secrets:
        """The secrets in SECRET_VARIABLES, and the passwords in ADDRESS_VARIABLES: for messages before the registry is
        read, which names the variables of the others."""
        tokens = (ApiToken.parse(each.strip()) for each in environ.get("REPOSYNC_API_TOKEN", "").split(","))
        named = (environ.get(name, "") for name in (*SECRET_VARIABLES, *ADDRESS_VARIABLES))
        return cls([*named, *(token.secret.get_secret_value() for token in tokens)])

    def __repr__(self) -> str:
        return f"Secrets({len(self._values)} known)"

    def know(self, values: Iterable[str]) -> None:
        """Add secrets. A URL among them stands for its credentials; what is shorter than SHORTEST_SECRET_CHARS is
        ignored."""
        known = self._values.union(*map(_secrets_in, values))
        if known == self._values:
            return
        forms = {form for value in known for form in _forms(value) if len(form) >= SHORTEST_SECRET_CHARS}
        # Longest first: one secret may be the beginning of another.
        self._values, self._forms = known, tuple(sorted(forms, key=lambda form: (-len(form), form)))
        self._margin_chars = max(map(len, self._forms), default=0) + _MARGIN_CHARS

    def redact(self, text: str, limit: int | None = None) -> str:
        """`text` without the known secrets, in any encoding, and without what has the shape of a secret.

        `limit`: the most characters that are kept; no part of a secret remains at the cut.
        """
        if limit is None or len(text) <= limit:
            return self._redacted(text)
        # A secret that the first cut splits is in the last characters, which the second cut removes.
        redacted = self._redacted(text[: limit + self._margin_chars])
        return redacted[: max(min(len(redacted) - self._margin_chars, limit), 0)] + "…"

    def _redacted(self, text: str) -> str:
        # Only of those in the text: an alternation of all would be tried at each character.
        if present := [re.escape(form) for form in self._forms if form in text]:
            text = re.sub("|".join(present), MASK, text)
        if "\n" in text and (broken := self._broken_in(text)):
            text = re.sub("|".join(broken), MASK, text)
        # Every request logs a line of twenty texts: not a generator for each shape.
        contains = text.lower().__contains__
        if any(map(contains, _HINTS)):
            for shape in _SHAPES:
                if any(map(contains, shape.hints)):
                    text = shape.pattern.sub(shape.replacement, text)
        return text

    def _broken_in(self, text: str) -> list[str]:
        """Patterns of secrets that line breaks split: base64 is often wrapped."""
        joined = _LINE_BREAK.sub("", text)
        perhaps = f"(?:{_LINE_BREAK.pattern})?"
        return [perhaps.join(map(re.escape, form)) for form in self._forms if form in joined]


def names_secret(key: str) -> bool:
    """Whether the value under this key is a secret by its name: `token`, `api_key`, `PRIVATE-TOKEN`, ..."""
    return _SECRET_KEY.search(key) is not None


def _secrets_in(value: str) -> Iterator[str]:
    scheme, separator, rest = value.partition("://")
    if separator and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        user_info, at, _ = rest.rpartition("@")
        if not at:
            return
        user, colon, password = user_info.partition(":")
        # Git servers accept a token as the user name; the user of a database is a name (`postgres`).
        secret = password if colon or scheme.lower() not in ("http", "https") else user
        found = [secret, unquote(secret)]
    else:
        # A secret that was read from a file often ends with a newline.
        found = [value, value.strip()]
    yield from (each for each in found if len(each) >= SHORTEST_SECRET_CHARS)


def _forms(secret: str) -> Iterator[str]:
    """The encodings in which `secret` may be written."""
    yield secret
    raw = secret.encode("utf-8", "surrogatepass")
    for quoted in (quote(raw), quote(raw, safe=""), quote_plus(raw)):
        yield quoted
        yield quote(quoted)  # a URL within a URL
        yield re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), quoted)
    yield raw.hex()
    yield raw.hex().upper()
    yield "\0".join(secret)  # UTF-16 that was read as something else
    yield "\\x00".join(secret)
    for escaped in (json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret), ascii(secret)):
        yield escaped[1:-1]
    for offset in range(3):
        # After a user name of any length (`Authorization: Basic`): the characters of base64 that depend only on the
        # secret, for each alignment of its bytes to groups of three.
        encoded = base64.b64encode(bytes(offset) + raw).decode().rstrip("=")
        whole = len(raw) + offset
        core = encoded[(0, 2, 3)[offset] : len(encoded) if whole % 3 == 0 else -1]
        if len(core) >= SHORTEST_SECRET_CHARS:
            yield core
            yield core.replace("+", "-").replace("/", "_")
