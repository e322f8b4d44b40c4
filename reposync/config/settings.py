"""Settings of this process from the environment. Everything else is in the registry file."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, TypeVar, cast
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from reposync.config.addresses import AddressError, base_url
from reposync.config.spelling import hint
from reposync.config.tokens import ApiToken, api_tokens
from reposync.errors import ConfigError

T = TypeVar("T")

REGISTRY_NAME = "repositories.yaml"
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_POSTGRES_OPTIONS = ("sslmode", "ssl", "host", "port", "target_session_attrs", "prepared_statement_cache_size")


class Settings(BaseModel):
    """Frozen. Addresses that may hold a password stay out of the repr."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    config_path: Path | None  # None: there is no registry file, and everything has its defaults
    state_dir: Path
    database_url: str = Field(repr=False)  # for SQLAlchemy's asyncio engine: aiosqlite or asyncpg
    redis_url: str | None = Field(None, repr=False)
    qdrant_url: str | None = None
    qdrant_api_key: SecretStr | None = None
    api_tokens: tuple[ApiToken, ...] = ()
    pod_name: str
    log_format: Literal["console", "json"] = "console"

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Read the variables. Raises ConfigError that names every variable with a value that does not fit."""
        wrong: list[str] = []

        def read(name: str, parse: Callable[[Mapping[str, str]], T], stand_in: T) -> T:
            try:
                return parse(environ)
            except ConfigError as error:
                wrong.append(str(error))
            except ValueError as error:
                wrong.append(f"{name} {error}.")
            return stand_in

        state_dir = read("REPOSYNC_STATE_DIR", _state_dir, Path())
        settings = cls(
            config_path=read("REPOSYNC_CONFIG", _config_path, None),
            state_dir=state_dir,
            database_url=read("DATABASE_URL", lambda env: _database_url(env, state_dir), ""),
            redis_url=read("REDIS_URL", _redis_url, None),
            qdrant_url=read("QDRANT_URL", qdrant_url, None),
            qdrant_api_key=read("QDRANT_API_KEY", qdrant_api_key, None),
            api_tokens=read("REPOSYNC_API_TOKEN", _api_tokens, tuple[ApiToken, ...]()),
            pod_name=read("POD_NAME", _pod_name, ""),
            log_format=read("REPOSYNC_LOG_FORMAT", _log_format, "console"),
        )
        if wrong:
            raise ConfigError("\n".join(wrong))
        return settings


def make_state_dir(settings: Settings) -> None:
    """Make the folder, for its owner alone, where it is missing. Raises ConfigError where that cannot be."""
    try:
        settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(
            f"The state folder {settings.state_dir} cannot be made: {error.strerror}.",
            remedy="Name another one in REPOSYNC_STATE_DIR.",
        ) from error


def qdrant_url(environ: Mapping[str, str]) -> str | None:
    """QDRANT_URL; None where it is not set. Raises ConfigError."""
    value = _value(environ, "QDRANT_URL")
    try:
        return base_url(value) if value else None
    except AddressError as error:
        raise ConfigError(f"QDRANT_URL {error}.") from None


def qdrant_api_key(environ: Mapping[str, str]) -> SecretStr | None:
    """QDRANT_API_KEY; None where it is not set. Raises ConfigError."""
    value = _value(environ, "QDRANT_API_KEY")
    if value and not re.fullmatch(r"[\x21-\x7e]+", value):
        raise ConfigError("QDRANT_API_KEY must be printable ASCII without spaces.")
    return SecretStr(value) if value else None


def _value(environ: Mapping[str, str], name: str) -> str:
    # A variable that is set to nothing is how charts and compose files say that it is not set.
    return environ.get(name, "").strip()


def _config_path(environ: Mapping[str, str]) -> Path | None:
    if named := _value(environ, "REPOSYNC_CONFIG"):
        path = Path(named).expanduser()
        if not path.exists():
            raise ConfigError(
                f"REPOSYNC_CONFIG names {named}, and there is no such file.",
                remedy="Correct it, or unset it to work without a registry file.",
            )
        if path.is_dir():
            raise ConfigError(f"REPOSYNC_CONFIG names {named}, which is a folder.", remedy="Name the file in it.")
        return path.absolute()
    folders = [Path.cwd()]
    with contextlib.suppress(RuntimeError):  # a user that has no home, as in a container: not in passwd, HOME not set
        folders.append(Path(platformdirs.user_config_dir("reposync", appauthor=False)))
    return next((folder / REGISTRY_NAME for folder in folders if (folder / REGISTRY_NAME).is_file()), None)


def _state_dir(environ: Mapping[str, str]) -> Path:
    named = _value(environ, "REPOSYNC_STATE_DIR")
    try:
        folder = Path(named or platformdirs.user_state_dir("reposync", appauthor=False)).expanduser().absolute()
    except RuntimeError as error:
        raise ValueError("must name a folder: this user has no home that one could be in") from error
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"REPOSYNC_STATE_DIR is {folder}, which is not a folder.")
    return folder


def _database_url(environ: Mapping[str, str], state_dir: Path) -> str:
    value = _value(environ, "DATABASE_URL")
    if not value:
        return _sqlite_url(state_dir / "reposync.db")
    scheme, separator, rest = value.partition("://")
    if separator and scheme in ("postgres", "postgresql", "postgresql+asyncpg"):
        return _postgres_url(rest)
    if separator and scheme in ("sqlite", "sqlite+aiosqlite"):
        # As in SQLAlchemy: three slashes and a relative path, four and an absolute one.
        file = rest.removeprefix("/")
        if not rest.startswith("/") or file in ("", ":memory:") or "?" in file:
            raise ValueError("must name a file and nothing else, such as sqlite:////var/lib/reposync/reposync.db")
        return _sqlite_url(Path(file).absolute())
    raise ValueError("must start with postgresql:// or sqlite:///; other databases and drivers are not supported")


def _sqlite_url(file: Path) -> str:
    return f"sqlite+aiosqlite:///{quote(str(file), safe='/ :@!$&()*+,;=')}"


def _postgres_url(rest: str) -> str:
    """libpq's spelling of an address, as SQLAlchemy and asyncpg want it."""
    try:
        split = urlsplit(f"postgresql://{rest}")
        servers = split.netloc.rpartition("@")[2].split(",")
        port_is_wrong = any(urlsplit(f"postgresql://{server}").port == 0 for server in servers)
        options = dict(parse_qsl(split.query, keep_blank_values=True, strict_parsing=bool(split.query)))
    except ValueError:
        port_is_wrong, split, options = True, urlsplit(""), {}
    if port_is_wrong or "#" in rest or "@" in split.query or (rest.count("@") > 1 and "?" not in rest):
        raise ValueError("cannot be read as an address; in a password write @ : / ? # % as %40 %3A %2F %3F %23 %25")
    for name in options:
        if name not in _POSTGRES_OPTIONS:
            more = "; use the variable PGSSLROOTCERT" if name == "sslrootcert" else hint(name, _POSTGRES_OPTIONS)
            raise ValueError(f"has an option `{name[:40]}` that is not supported{more}")
    if mode := options.pop("sslmode", None) or options.pop("ssl", None):
        if mode not in _SSL_MODES:
            raise ValueError(f"has an unknown `sslmode`{hint(mode, _SSL_MODES)}")
        options["ssl"] = mode
    if not split.path.strip("/"):
        raise ValueError("names no database: write postgresql://user:password@host/database")
    query = f"?{urlencode(options)}" if options else ""
    return f"postgresql+asyncpg://{split.netloc}{split.path}{query}"


def _redis_url(environ: Mapping[str, str]) -> str | None:
    value = _value(environ, "REDIS_URL")
    if not value:
        return None
    try:
        split = urlsplit(value)
        names_server = bool(split.path) if split.scheme == "unix" else bool(split.hostname) and split.port != 0
    except ValueError:
        names_server = False
        split = urlsplit("redis:")
    if "sentinel" in split.scheme or "cluster" in split.scheme:
        raise ValueError(
            "names a Sentinel or a Cluster, which reposync does not ask: name one Redis server, or the service or "
            "proxy that leads to the primary (redis://host:6379)"
        )
    if split.scheme not in ("redis", "rediss", "unix"):
        raise ValueError("must start with redis://, rediss:// or unix://")
    if not names_server:
        raise ValueError("cannot be read as an address: its host or port is missing or wrong")
    return value


def _api_tokens(environ: Mapping[str, str]) -> tuple[ApiToken, ...]:
    return api_tokens(_value(environ, "REPOSYNC_API_TOKEN"))


def _pod_name(environ: Mapping[str, str]) -> str:
    name = _value(environ, "POD_NAME") or socket.gethostname() or "localhost"
    if not name.isprintable() or len(name) > 253:
        raise ValueError("must be one line of at most 253 characters")
    return name


def _log_format(environ: Mapping[str, str]) -> Literal["console", "json"]:
    value = _value(environ, "REPOSYNC_LOG_FORMAT").lower() or "console"
    if value not in ("console", "json"):
        raise ValueError("must be console or json")
    return cast(Literal["console", "json"], value)
