"""Settings of this process from the environment. Everything else is in the registry file."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlsplit

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from reposync.config.database_url import SqliteAddress, parse_address, sqlite_url
from reposync.config.references import file_content
from reposync.config.secret_fields import LONGEST_TOKEN_CHARS, SHORTEST_TOKEN_CHARS, api_token_problem, known_text
from reposync.errors import ConfigError

if TYPE_CHECKING:
    from reposync.config.registry import Registry
    from reposync.config.sections import HttpConfig, QdrantConfig

TokenRole = Literal["read", "operate"]
ROLES: tuple[TokenRole, ...] = ("read", "operate")

REGISTRY_NAME = "repositories.yaml"


@dataclass(frozen=True, slots=True)
class ApiToken:
    """A token of the HTTP API and what it permits. `name`: empty for one of REPOSYNC_API_TOKEN. `repositories`:
    patterns of the names of those that it sees; None: all."""

    role: TokenRole
    secret: SecretStr
    name: str = ""
    repositories: tuple[str, ...] | None = None

    @classmethod
    def parse(cls, text: str) -> ApiToken:
        """`read:SECRET`, `operate:SECRET`, or a bare secret, which has the role operate."""
        word, separator, secret = text.partition(":")
        if separator and word in ROLES:
            return cls(word, SecretStr(secret))
        return cls("operate", SecretStr(text))


class Settings(BaseModel):
    """Frozen. Addresses, which may hold a password, are not in the repr."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    config_path: Path | None  # None: there is no registry file, and the defaults apply
    state_dir: Path
    database_url: str = Field(repr=False)  # see `reposync.config.database_url`
    redis_url: str | None = Field(None, repr=False)
    qdrant_url: str | None = None
    qdrant_api_key: SecretStr | None = None
    api_tokens: tuple[ApiToken, ...] = ()
    pod_name: str
    log_format: Literal["console", "json"] = "console"

    @property
    def has_own_database(self) -> bool:
        """It is in the state folder, and nobody chose it."""
        return self.database_url == _own_database_url(self.state_dir)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ, *, bare_names: bool = False) -> Settings:
        """Read the variables. Raises ConfigError that names every variable with an invalid value.

        `bare_names`: a server may also be named by a variable without REPOSYNC_, which other programs read too."""
        wrong: list[str] = []
        found: dict[str, Any] = {}
        for variable, (field, parse) in _VARIABLES.items():
            names = [variable]
            if variable in SECRET_VARIABLES:
                names.append(f"{variable}_FILE")
            if variable in _SERVERS and bare_names:
                names.append(variable.removeprefix("REPOSYNC_"))
            name = next((name for name in names if environ.get(name, "").strip()), variable)
            # Charts and compose files set a variable to nothing to unset it.
            text = environ.get(name, "").strip()
            if not text and not cls.model_fields[field].is_required():
                continue
            try:
                found[field] = parse(file_content(text) if name.endswith("_FILE") else text)
            except ConfigError as error:
                wrong.append(f"{name}: {error}")
            except ValueError as error:
                wrong.append(f"{name} {error}.")
        if wrong:
            raise ConfigError("\n".join(wrong))
        return cls(**found | {"database_url": found["database_url"] or _own_database_url(found["state_dir"])})


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings, and the sections of the applied registry. Repositories are rows of the database instead."""

    settings: Settings
    registry: Registry

    def secrets(self) -> Iterator[str]:
        """Everything that must never be shown, in no order."""
        from reposync.outgoing import proxy_passwords  # imports asyncio and ssl

        settings, registry = self.settings, self.registry
        held = [settings.qdrant_api_key, registry.qdrant.api_key, registry.embedding.api_key]
        held += [token.secret for token in settings.api_tokens]
        held += [each.token for each in registry.http.tokens]
        for server in registry.gitlab:
            held += [server.token, server.webhook_secret, server.webhook_signing]
        held += [each.password for each in registry.repositories]
        held += [registry.http.sign_in.client_secret] if registry.http.sign_in is not None else []
        yield from filter(None, map(known_text, held))
        for url in (settings.database_url, settings.redis_url):
            if url and (password := urlsplit(url).password):
                yield unquote(password)
        yield from proxy_passwords()

    @property
    def qdrant(self) -> QdrantConfig:
        """Where the index is: the environment overrides the file."""
        given = {"url": self.settings.qdrant_url, "api_key": self.settings.qdrant_api_key}
        return self.registry.qdrant.model_copy(update={key: each for key, each in given.items() if each is not None})


def make_state_dir(settings: Settings) -> None:
    """Create the folder, for its owner only, if it is missing. Raises ConfigError if that fails."""
    try:
        settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(
            f"The state folder {settings.state_dir} cannot be created: {error.strerror}.",
            remedy="Set REPOSYNC_STATE_DIR to a different one.",
        ) from error


def api_tokens(value: str) -> tuple[ApiToken, ...]:
    """The tokens of a comma-separated list, each once. Raises ValueError without any part of a secret."""
    found: dict[str, ApiToken] = {}
    for position, text in enumerate(filter(None, (part.strip() for part in value.split(","))), 1):
        token = ApiToken.parse(text)
        secret = token.secret.get_secret_value()
        # A misspelt role would otherwise be the start of a secret, whose role is operate.
        if ":" in text and text.partition(":")[0] not in ROLES:
            raise ValueError(f"has an unknown role in token {position}: write read:SECRET or operate:SECRET")
        if api_token_problem(secret) is not None:
            raise ValueError(
                f"has a wrong token (number {position}): printable ASCII without spaces, {SHORTEST_TOKEN_CHARS} to "
                f"{LONGEST_TOKEN_CHARS} characters; `openssl rand -hex 24` makes a good one"
            )
        if found.setdefault(secret, token).role != token.role:
            raise ValueError(f"gives one token two roles (number {position} and an earlier one): keep one of them")
    return tuple(found.values())


def service_tokens(http: HttpConfig) -> tuple[ApiToken, ...]:
    """The tokens of the registry file whose secrets this process knows."""
    return tuple(
        ApiToken(each.role, each.token, each.name, each.repositories)
        for each in http.tokens
        if each.token is not None and known_text(each.token) is not None
    )


def _config_path(named: str) -> Path | None:
    if named:
        path = Path(named).expanduser()
        if not path.exists() or path.is_dir():
            raise ValueError(
                f"names {named}, which is no file: correct it, or unset it to work without a registry file"
            )
        return path.absolute()
    folders = [Path.cwd()]
    with contextlib.suppress(RuntimeError):  # in a container, the user may have no home
        folders.append(Path(platformdirs.user_config_dir("reposync", appauthor=False)))
    return next((folder / REGISTRY_NAME for folder in folders if (folder / REGISTRY_NAME).is_file()), None)


def _state_dir(named: str) -> Path:
    try:
        folder = Path(named or platformdirs.user_state_dir("reposync", appauthor=False)).expanduser().absolute()
    except RuntimeError as error:
        raise ValueError("must name a folder: this user has no home folder") from error
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"is {folder}, which is not a folder")
    return folder


def _own_database_url(state_dir: Path) -> str:
    return sqlite_url(state_dir / "reposync.db")


def _database_url(url: str) -> str:
    address = parse_address(url) if url else None
    # A relative path stays the same file when the process changes its folder.
    return sqlite_url(address.path.absolute()) if isinstance(address, SqliteAddress) else url


def _redis_url(url: str) -> str:
    scheme = url.partition("://")[0].lower()
    with contextlib.suppress(ValueError):
        split = urlsplit(url)
        if (scheme == "unix" and split.path) or (scheme in ("redis", "rediss") and split.hostname and split.port != 0):
            return url
    raise ValueError(
        "must be redis://, rediss:// or unix:// and the address of one Redis server (redis://host:6379); of a Sentinel "
        "or Cluster name a service or proxy that leads to the primary"
    )


def _qdrant_url(urls: str) -> str:
    from reposync.config.fields import base_urls  # takes 0.06 s, and most commands have no address of a server

    return base_urls(urls)


def _qdrant_api_key(key: str) -> SecretStr:
    if not re.fullmatch(r"[\x21-\x7e]+", key):
        raise ValueError("must be printable ASCII without spaces")
    return SecretStr(key)


def _pod_name(name: str) -> str:
    name = name or socket.gethostname() or "localhost"
    if not name.isprintable() or len(name) > 253:
        raise ValueError("must be one line of at most 253 characters")
    return name


def _log_format(name: str) -> str:
    if name.lower() not in ("console", "json"):
        raise ValueError("must be console or json")
    return name.lower()


_VARIABLES: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "REPOSYNC_STATE_DIR": ("state_dir", _state_dir),
    "REPOSYNC_CONFIG": ("config_path", _config_path),
    "REPOSYNC_DATABASE_URL": ("database_url", _database_url),
    "REPOSYNC_REDIS_URL": ("redis_url", _redis_url),
    "REPOSYNC_QDRANT_URL": ("qdrant_url", _qdrant_url),
    "REPOSYNC_QDRANT_API_KEY": ("qdrant_api_key", _qdrant_api_key),
    "REPOSYNC_API_TOKEN": ("api_tokens", api_tokens),
    "POD_NAME": ("pod_name", _pod_name),
    "REPOSYNC_LOG_FORMAT": ("log_format", _log_format),
}
_SERVERS = frozenset({"REPOSYNC_DATABASE_URL", "REPOSYNC_REDIS_URL", "REPOSYNC_QDRANT_URL", "REPOSYNC_QDRANT_API_KEY"})
SECRET_VARIABLES = _SERVERS | {"REPOSYNC_API_TOKEN"}
"""They hold secrets: `..._FILE` may be the path of a file with the value."""
