"""The registry: what the YAML file says, checked. `resolved()` is what the rest of the program works with."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeGuard, TypeVar

from pydantic import (
    Field,
    ModelWrapValidatorHandler,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from reposync.config import fields
from reposync.config.addresses import split_credentials
from reposync.config.consistency import DEFAULT_CHUNK_OVERLAP, DEFAULT_CHUNK_SIZE, contradictions, overlap_of
from reposync.config.daemon import DaemonConfig
from reposync.config.fields import Listing, Maybe, Unfit
from reposync.config.http import HttpConfig
from reposync.config.index import IndexConfig
from reposync.config.references import MissingSecret
from reposync.config.schedule import NEVER, Schedule
from reposync.config.section import Section
from reposync.config.services import EmbeddingConfig, QdrantConfig
from reposync.errors import ConfigError

T = TypeVar("T")

SHORTEST_WEBHOOK_SECRET = 16  # characters
SIGNING_KEY_BYTES = 32


def _is_known(secret: SecretStr | None) -> TypeGuard[SecretStr]:
    return secret is not None and not isinstance(secret, MissingSecret)


def signing_key(token: str) -> bytes | None:
    """The key inside a signing token of GitLab's webhooks; None where it is none."""
    prefix, _, encoded = token.partition("_")
    try:
        key = base64.b64decode(encoded, validate=True)
    except binascii.Error:
        return None
    return key if prefix == "whsec" and len(key) == SIGNING_KEY_BYTES else None


class GitLabInstance(Section):
    """A GitLab server. Without a token only public projects are seen."""

    name: fields.Name = Field(description="What repositories and groups call this server.")
    url: fields.GitLabUrl = Field(description="Its address, without /api/v4.")
    token: Maybe[fields.HeaderSecret] = Field(None, description="Access token with read_api and read_repository.")
    ca_file: Maybe[fields.LocalPath] = Field(None, description="PEM file of the authority that signed its certificate.")
    webhook_secret: Maybe[fields.HeaderSecret] = Field(
        None, description="Secret token of its webhooks: 16 characters at least, the same in all of them."
    )
    webhook_signing: Maybe[fields.HeaderSecret] = Field(
        None, description="Signing token of its webhooks (GitLab 19.0 and later): whsec_ and 32 bytes in base64."
    )
    connect_timeout_seconds: fields.Seconds = 10.0
    read_timeout_seconds: fields.Seconds = 60.0

    @field_validator("webhook_secret")
    @classmethod
    def _hard_to_guess(cls, secret: SecretStr | None) -> SecretStr | None:
        # Whoever knows it may start syncs, and the endpoint is open to everybody who can reach the server.
        if _is_known(secret) and len(secret.get_secret_value()) < SHORTEST_WEBHOOK_SECRET:
            raise Unfit(f"must be {SHORTEST_WEBHOOK_SECRET} characters at least; `openssl rand -hex 32` makes one")
        return secret

    @field_validator("webhook_signing")
    @classmethod
    def _signing_key(cls, secret: SecretStr | None) -> SecretStr | None:
        if _is_known(secret) and signing_key(secret.get_secret_value()) is None:
            raise Unfit(
                "must be whsec_ and 32 bytes in base64, as GitLab asks for it: "
                '`echo "whsec_$(openssl rand -base64 32)"` makes one'
            )
        return secret


def _without_default(schema: dict[str, Any]) -> None:
    """For a key that means something else if it is null than if it is left out."""
    schema.pop("default", None)


class Chunk(Section):
    """How files are cut: windows of `size` characters that share `overlap` characters with the next."""

    size: fields.ChunkSize = Field(DEFAULT_CHUNK_SIZE, description="Characters in a chunk.")
    overlap: fields.ChunkOverlap = Field(
        default_factory=lambda said: overlap_of(said.get("size", DEFAULT_CHUNK_SIZE)),
        description="Characters shared with the next chunk; below `size`. Left out: a fifth of a `size` that is given.",
        json_schema_extra={"default": DEFAULT_CHUNK_OVERLAP},
    )

    @field_validator("overlap")
    @classmethod
    def _below_size(cls, overlap: int, info: ValidationInfo) -> int:
        size = info.data.get("size", overlap + 1)
        if overlap >= size:
            raise Unfit(f"must be below `size`: {overlap} is not below {size}")
        return overlap


class ChunkOverride(Section):
    """In place of the defaults; what is left out comes from there, except the overlap of another size."""

    size: Maybe[fields.ChunkSize] = None
    overlap: Maybe[fields.ChunkOverlap] = Field(
        None, description="Left out: a fifth of `size`, if that is not the defaults' one."
    )


class Defaults(Section):
    """What holds for every repository that does not say otherwise."""

    schedule: fields.ScheduleOrNever = Field(
        "0 */6 * * *",
        description="Crontab (0 and 7 are Sunday), @daily, @every 10m, or words: every 6 hours, daily at 03:00. never "
        "(null): on request only.",
    )
    timezone: fields.Timezone = Field("UTC", description="IANA time zone of the schedule.")
    collection: fields.Collection = Field("code", description="Qdrant collection.")
    chunk: fields.OrDefaults[Chunk] = Chunk()
    max_file_bytes: fields.FileBytes = Field(1_000_000, description="Larger files are skipped.")
    include: fields.ListedGlobs = Field((), description="Gitignore patterns; where there are any, only these files.")
    exclude: fields.ListedGlobs = Field((), description="Gitignore patterns of files that are left out.")


class Repository(Section):
    """One repository: a project of a GitLab server, an https git repository, or a folder of this machine."""

    name: fields.Name = Field(description="What people and commands call it.")
    gitlab: Maybe[fields.Name] = Field(None, description="Name of the GitLab server; needs `project`.")
    project: Maybe[fields.Project] = Field(None, description="group/project")
    git: Maybe[fields.GitUrl] = Field(None, description="https:// address of a git repository.")
    path: Maybe[fields.LocalPath] = Field(None, description="Folder; a relative one starts at the folder of this file.")
    username: Maybe[fields.Text] = Field(None, description="With `git` and `password`; oauth2 where left out.")
    password: Maybe[fields.Secret] = Field(None, description="With `git`: password or access token.")
    branch: Maybe[fields.Branch] = Field(None, description="The default branch where left out.")
    schedule: fields.MaybeScheduleOrNever = Field(
        None,
        validate_default=False,
        json_schema_extra=_without_default,
        description="In place of `defaults.schedule`; never (null in the file): on request only.",
    )
    timezone: Maybe[fields.Timezone] = None
    collection: Maybe[fields.Collection] = None
    chunk: ChunkOverride | None = None
    max_file_bytes: Maybe[fields.FileBytes] = None
    include: fields.Globs | None = Field(None, description="In place of the defaults' patterns.")
    exclude: fields.Globs | None = Field(None, description="In place of the defaults' patterns.")

    @model_validator(mode="before")
    @classmethod
    def _credentials_apart(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or not isinstance(value.get("git"), str):
            return value
        url, username, password = split_credentials(value["git"])
        if username is None or value.get("username"):
            return value
        if value.get("password"):
            return value if password is not None else {**value, "git": url, "username": username}
        if password is None:
            # https://TOKEN@host: what stands alone is the secret.
            return {**value, "git": url, "password": username}
        return {**value, "git": url, "username": username or None, "password": password}

    @field_validator("path")
    @classmethod
    def _one_source(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        if not {"gitlab", "project", "git"} <= info.data.keys():
            return path  # one of them is wrong in itself
        given = [key for key in ("gitlab", "git") if info.data[key]] + ["path"] * (path is not None)
        if info.data["project"] and "gitlab" not in given:
            raise Unfit("`project` needs `gitlab`, the name of its server", own_words=True)
        if "gitlab" in given and not info.data["project"]:
            raise Unfit("`gitlab` needs `project`, its path there (group/project)", own_words=True)
        if len(given) != 1:
            found = f"not {' and '.join(f'`{key}`' for key in given)}" if given else "none is given"
            raise Unfit(f"exactly one of `gitlab`, `git` and `path` says where it is: {found}", own_words=True)
        return path

    @field_validator("username", "password")
    @classmethod
    def _for_git_alone(cls, value: T, info: ValidationInfo) -> T:
        if value is not None and "git" in info.data and not info.data["git"]:
            raise Unfit("is for `git` alone; a GitLab server has its `token`")
        return value


class Group(Section):
    """All projects of a GitLab group and its subgroups whose paths fit. They register themselves."""

    gitlab: fields.Name = Field(description="Name of the GitLab server.")
    group: fields.Group = Field(description="Path of the group.")
    include: fields.ListedGlobs = Field((), description="Gitignore patterns of project paths; only these, if any.")
    exclude: fields.ListedGlobs = Field((), description="Gitignore patterns of project paths that are left out.")
    archived: fields.Flag = Field(False, description="Whether archived projects are registered too.")
    discover: fields.ScheduleText = Field(
        "*/30 * * * *", description="When to look for new, moved and vanished projects; read in the group's time zone."
    )
    schedule: fields.MaybeScheduleOrNever = Field(
        None,
        validate_default=False,
        json_schema_extra=_without_default,
        description="When each of the projects is synced; never (null): on request only.",
    )
    timezone: Maybe[fields.Timezone] = Field(None, description="IANA time zone of both schedules.")
    collection: Maybe[fields.Collection] = Field(None, description="Qdrant collection of the projects.")
    chunk: ChunkOverride | None = Field(None, description="How files of the projects are cut.")
    max_file_bytes: Maybe[fields.FileBytes] = Field(None, description="Larger files of the projects are skipped.")

    def definition(self, name: str, project: str) -> dict[str, Any]:
        """The entry that a project of this group would have under `repositories`: plain values, ready for JSON. What
        the group does not say is left to the defaults of the day."""
        said = self.model_dump(include={"schedule", "timezone", "collection", "chunk", "max_file_bytes"})
        if said["chunk"] is not None:
            said["chunk"] = {key: value for key, value in said["chunk"].items() if value is not None}
        kept = {key: value for key, value in said.items() if value is not None and value != {}}
        return {"name": name, "gitlab": self.gitlab, "project": project, **kept}


@dataclass(frozen=True, slots=True)
class ResolvedRepository:
    """A repository with everything filled in. `location` is for people and holds no secret."""

    name: str
    kind: Literal["gitlab", "git", "path"]
    location: str
    branch: str | None  # None: the default branch
    schedule: Schedule | None  # None: people, pushes and commands alone sync it
    collection: str
    chunk_size: int  # characters
    chunk_overlap: int  # characters
    max_file_bytes: int
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    gitlab: GitLabInstance | None = None  # with `project`
    project: str | None = None
    git_url: str | None = None  # without credentials
    username: str | None = None
    password: SecretStr | None = None
    path: Path | None = None

    @property
    def timezone(self) -> str:
        """Of its schedule; UTC without one."""
        return self.schedule.timezone if self.schedule else "UTC"


class Registry(Section):
    """Everything that the registry file says."""

    gitlab: Listing[GitLabInstance] = ()
    defaults: fields.OrDefaults[Defaults] = Defaults()
    repositories: Listing[Repository] = ()
    groups: Listing[Group] = ()
    embedding: fields.OrDefaults[EmbeddingConfig] = EmbeddingConfig()
    qdrant: fields.OrDefaults[QdrantConfig] = QdrantConfig()
    index: fields.OrDefaults[IndexConfig] = IndexConfig()
    daemon: fields.OrDefaults[DaemonConfig] = DaemonConfig()
    http: fields.OrDefaults[HttpConfig] = HttpConfig()

    @model_validator(mode="wrap")
    @classmethod
    def _consistent(cls, value: Any, handler: ModelWrapValidatorHandler[Registry]) -> Registry:
        errors: list[InitErrorDetails] = []
        registry = None
        try:
            registry = handler(value)
        except ValidationError as error:
            errors += _repeatable(error)
        for found in contradictions(value):
            context = {"message": found.message, "other": found.other}
            kind = PydanticCustomError("contradiction", "{message}", context)
            errors.append(InitErrorDetails(type=kind, loc=found.loc, input=None))
        if registry is None or errors:
            raise ValidationError.from_exception_data("Registry", errors, hide_input=True)
        return registry

    def resolved(self) -> tuple[ResolvedRepository, ...]:
        """The repositories that are listed by name, in the order of the file. Those of `groups` are GitLab's to say."""
        return tuple(map(self.resolve, self.repositories))

    def resolve(self, repository: Repository) -> ResolvedRepository:
        """`repository` with this registry's servers and defaults. Raises ConfigError where they do
        not fit together."""
        defaults = self.defaults
        chunk = repository.chunk or ChunkOverride()
        size = _first(chunk.size, defaults.chunk.size)
        schedule, timezone = (
            _first(repository.schedule, defaults.schedule),
            _first(repository.timezone, defaults.timezone),
        )
        for found in contradictions({"gitlab": self.gitlab, "defaults": defaults, "repositories": [repository]}):
            raise ConfigError(f"repository {repository.name!r}: {found.message}")
        server = next((server for server in self.gitlab if server.name == repository.gitlab), None)
        kind, location = _location(repository)
        return ResolvedRepository(
            name=repository.name,
            kind=kind,
            location=location,
            branch=repository.branch,
            schedule=None if schedule == NEVER else Schedule.parse(schedule, timezone),
            collection=_first(repository.collection, defaults.collection),
            chunk_size=size,
            chunk_overlap=_first(chunk.overlap, overlap_of(size, defaults.chunk.size, defaults.chunk.overlap)),
            max_file_bytes=_first(repository.max_file_bytes, defaults.max_file_bytes),
            include=_first(repository.include, defaults.include),
            exclude=_first(repository.exclude, defaults.exclude),
            gitlab=server,
            project=repository.project,
            git_url=repository.git,
            username=repository.username or ("oauth2" if repository.password else None),
            password=repository.password,
            path=repository.path,
        )


def _repeatable(error: ValidationError) -> Iterator[InitErrorDetails]:
    for details in error.errors(include_url=False, include_input=False):
        if details["type"] == "default_factory_not_called":
            continue  # the overlap of a size that is wrong
        # The values stay out: they may be secrets.
        yield InitErrorDetails(type=details["type"], loc=details["loc"], input=None, ctx=dict(details.get("ctx", {})))


def _first(value: T | None, default: T) -> T:
    return default if value is None else value


def _location(repository: Repository) -> tuple[Literal["gitlab", "git", "path"], str]:
    if repository.gitlab is not None:
        return "gitlab", f"gitlab:{repository.gitlab}:{repository.project}"
    if repository.git is not None:
        return "git", repository.git
    return "path", str(repository.path)
