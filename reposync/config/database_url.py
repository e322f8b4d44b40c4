"""Parsing the address of the database, and the parts of it that can be shown to people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from reposync.errors import ConfigError

_FORMS = "Write it as postgresql://user:password@host:5432/name or sqlite:///path."
_CACHE_OPTION = "prepared_statement_cache_size"
_CACHE_SIZE = 100


@dataclass(frozen=True, slots=True)
class SqliteAddress:
    path: Path

    @property
    def where(self) -> str:
        return f"in {self.path}"


@dataclass(frozen=True, slots=True)
class PostgresqlAddress:
    """`dsn`, which may hold a password, is parsed by asyncpg like libpq: sslmode, sslrootcert, several hosts.
    `statement_cache_size` is 0 behind a PgBouncer that pools transactions."""

    dsn: str
    where: str
    statement_cache_size: int = _CACHE_SIZE

    @property
    def servers(self) -> list[str]:
        """One address for each server, in libpq's order. Of several servers a writable one is required, unless the
        address has its own `target_session_attrs`."""
        parts = urlsplit(self.dsn)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        user, at, listed = parts.netloc.rpartition("@")
        if listed:
            alone = [(f"{user}{at}{host}", options) for host in listed.split(",")]
        else:
            hosts, ports = options.get("host", "").split(","), options.get("port", "").split(",")
            if len(ports) == 1:
                ports *= len(hosts)
            if len(ports) != len(hosts):
                return [self.dsn]  # asyncpg reports the error
            named = zip(hosts, ports, strict=True)
            alone = [
                (parts.netloc, options | {key: value for key, value in (("host", host), ("port", port)) if value})
                for host, port in named
            ]
        if len(alone) == 1:
            return [self.dsn]
        return [_dsn(netloc, parts.path, {"target_session_attrs": "read-write"} | each) for netloc, each in alone]


def sqlite_url(path: Path) -> str:
    """The URL of a database file, whatever characters its path has."""
    return f"sqlite:///{quote(str(path))}"


def parse_address(url: str) -> SqliteAddress | PostgresqlAddress:
    """Raises ConfigError for any other address, without any part of it that may be a password."""
    scheme, separator, rest = url.strip().partition("://")
    if not separator:
        raise ConfigError("The address of the database is not a URL.", remedy=_FORMS)
    kind = scheme.partition("+")[0].lower()
    if kind == "sqlite":
        return _sqlite(rest)
    if kind in ("postgresql", "postgres"):
        return _postgresql(rest)
    raise ConfigError("The address of the database must start with postgresql:// or sqlite:///.", remedy=_FORMS)


def malformed_address(reason: str = "") -> ConfigError:
    return ConfigError(
        "The address of the database is malformed" + (f": {reason}." if reason else "."),
        remedy=f"{_FORMS} Special characters of user and password must be percent-encoded (%40 for @, %2F for /).",
    )


def _sqlite(rest: str) -> SqliteAddress:
    path = unquote(rest.partition("?")[0].removeprefix("/"))
    if not path or path == ":memory:":
        raise ConfigError(
            "The address of the database must name a file, which the processes of reposync share: sqlite:///path."
        )
    if rest[0] != "/":
        raise ConfigError(
            "The address of the database names a host: SQLite needs three slashes and a path.", remedy=_FORMS
        )
    return SqliteAddress(Path(path))


def _postgresql(rest: str) -> PostgresqlAddress:
    try:
        parts = urlsplit(f"postgresql://{rest}")
    except ValueError:
        raise malformed_address() from None
    # A `/`, `?` or `#` inside a password splits it, and its first part would be shown as the host.
    if "@" in parts.path or "@" in parts.fragment or ("@" in parts.query and "@" not in parts.netloc):
        raise malformed_address()
    options = parse_qsl(parts.query, keep_blank_values=True)
    size = dict(options).get(_CACHE_OPTION, str(_CACHE_SIZE))
    if not size.isdecimal():
        raise ConfigError(
            f"{_CACHE_OPTION} in the address of the database is not a number.", remedy="Use 0 behind PgBouncer."
        )
    # SQLAlchemy's name for `sslmode` is `ssl`, and people copy addresses between projects.
    kept = {"sslmode" if key == "ssl" else key: value for key, value in options if key != _CACHE_OPTION}
    return PostgresqlAddress(_dsn(parts.netloc, parts.path, kept), _shown(parts, dict(options)), int(size))


def _dsn(netloc: str, path: str, options: Mapping[str, str]) -> str:
    return f"postgresql://{netloc}{path}" + (f"?{urlencode(options, quote_via=quote)}" if options else "")


def _shown(parts: SplitResult, options: dict[str, str]) -> str:
    host = parts.netloc.rpartition("@")[2] or options.get("host") or "the local server"
    name = unquote(parts.path.removeprefix("/")) or options.get("dbname") or options.get("database")
    return f"{name} on {host}" if name else f"on {host}"
