"""The registry file as checked models. The rest of the program works with `ResolvedRepository`."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from reposync.config import fields, secret_fields
from reposync.config.document import Loc
from reposync.config.fields import ConfigModel, InvalidValue, Listing, key
from reposync.config.gitlab_instance import GitLabInstance
from reposync.config.references import Interpolated, has_clear_credentials, split_credentials
from reposync.config.schedule import NEVER, Schedule
from reposync.config.sections import (
    AuditConfig,
    DaemonConfig,
    EmbeddingConfig,
    HttpConfig,
    IndexConfig,
    QdrantConfig,
    SearchConfig,
)
from reposync.errors import ConfigError
from reposync.words import suggestion

T = TypeVar("T")

SecretAction = Literal["mask", "skip", "warn", "off"]

DEFAULT_CHUNK_SIZE, DEFAULT_CHUNK_OVERLAP = 7000, 1500  # characters


def default_overlap(size: int, usual_size: int = DEFAULT_CHUNK_SIZE, usual_overlap: int = DEFAULT_CHUNK_OVERLAP) -> int:
    """The overlap of chunks without an overlap of their own: the usual one at the usual size, else a fifth of the size.
    An overlap that does not shrink with the chunks would embed most of a text several times."""
    return usual_overlap if size == usual_size else size // 5


class ChunkOverride(ConfigModel):
    """Overrides the defaults. What is left out comes from the defaults, except the overlap of a different size."""

    size: fields.ChunkSize | None = None
    overlap: fields.ChunkOverlap | None = key(
        None, "Default: a fifth of `size`, if that differs from that of the defaults."
    )


class Chunk(ChunkOverride):
    """How files are split: windows of `size` characters that share `overlap` characters with the next."""

    size: fields.ChunkSize = key(DEFAULT_CHUNK_SIZE, "Characters in a chunk.")
    overlap: fields.ChunkOverlap = Field(
        default_factory=lambda values: default_overlap(values.get("size", DEFAULT_CHUNK_SIZE)),
        description="Characters shared with the next chunk; below `size`. Default: a fifth of a given `size`.",
        json_schema_extra={"default": DEFAULT_CHUNK_OVERLAP},
    )

    @field_validator("overlap")
    @classmethod
    def _below_size(cls, overlap: int, info: ValidationInfo) -> int:
        size = info.data.get("size", overlap + 1)
        if overlap >= size:
            raise InvalidValue(f"must be below `size`: {overlap} is not below {size}")
        return overlap


class SecretsOverride(ConfigModel):
    """Overrides the defaults. What is left out comes from the defaults."""

    action: fields.Words[SecretAction] | None = key(None, "Overrides `defaults.secrets.action`.")
    generic: fields.Words[SecretAction] | None = key(None, "Overrides `defaults.secrets.generic`.")
    allow: fields.Globs | None = key(None, "Replaces the patterns of the defaults.")
    allow_values: tuple[fields.Sha256, ...] | None = key(None, "Replaces the values of the defaults.")


class SecretsConfig(ConfigModel):
    """What is done about secrets in code. mask: replace their characters. skip: leave the file out. warn: only report
    them. off: do not look for them."""

    action: fields.Words[SecretAction] = key("mask", "For kinds that are known: tokens of providers, private keys, ...")
    generic: fields.Words[SecretAction] = key("warn", "For values that are secrets by their name and look.")
    allow: fields.ListedGlobs = key((), "Gitignore patterns of files that are not scanned.")
    allow_values: Listing[fields.Sha256] = key((), "SHA-256 of values that are no secrets, in hex.")


class Defaults(ConfigModel):
    """Values for every repository that does not override them."""

    schedule: fields.ScheduleOrNever = Field(
        "0 */6 * * *",
        description="Crontab (0 and 7 are Sunday; H: a number that depends on the repository's name), @daily, "
        "@every 10m, or words: every 6 hours, daily at 03:00. never (null): on request only.",
    )
    timezone: fields.Timezone = Field("UTC", description="IANA time zone of the schedule.")
    collection: fields.Collection = Field("code", description="Qdrant collection.")
    chunk: fields.OrDefaults[Chunk] = Chunk()
    max_file_bytes: fields.FileBytes = key(1_000_000, "Larger files are skipped.")
    include: fields.ListedGlobs = key((), "Gitignore patterns; if there are any, only these files.")
    exclude: fields.ListedGlobs = key((), "Gitignore patterns of files that are left out.")
    secrets: fields.OrDefaults[SecretsConfig] = SecretsConfig()


# For a key for which null has a different meaning than leaving it out.
_NULL_IS_NEVER = {"validate_default": False, "json_schema_extra": lambda schema: schema.pop("default", None)}


_SOURCES: dict[str, Any] = {
    "oneOf": [fields.texts("gitlab", "project"), fields.texts("git"), fields.texts("path")],
}


class Repository(ConfigModel):
    """One repository: a project of a GitLab server, an https git repository, or a folder of this machine."""

    model_config = ConfigDict(json_schema_extra=_SOURCES)

    name: fields.Name = Field(description="The name that people and commands use.")
    gitlab: fields.Name | None = key(None, "Name of the GitLab server; requires `project`.")
    project: fields.Project | None = key(None, "group/project")
    git: fields.GitUrl | None = key(None, "https:// address of a git repository.")
    path: fields.LocalPath | None = key(None, "Folder; a relative one starts at the folder of the registry file.")
    username: fields.Text | None = key(None, "With `git` and `password`; default: oauth2.")
    password: secret_fields.Password = key(None, "With `git`: password or access token.")
    branch: fields.Branch | None = key(None, "Default: the default branch.")
    schedule: fields.MaybeScheduleOrNever = key(
        None, "Overrides `defaults.schedule`; never (null in the file): on request only.", **_NULL_IS_NEVER
    )
    timezone: fields.Timezone | None = None
    collection: fields.Collection | None = None
    chunk: ChunkOverride | None = None
    max_file_bytes: fields.FileBytes | None = None
    include: fields.Globs | None = key(None, "Replaces the patterns of the defaults.")
    exclude: fields.Globs | None = key(None, "Replaces the patterns of the defaults.")
    secrets: SecretsOverride | None = None
    readers: tuple[fields.Reader, ...] | None = key(
        None,
        "With `http.access: gitlab`, who else sees it: `project:` and a path, for the jobs of that project; and, of a "
        "repository that is no project of a GitLab server, paths of groups, for their members, or everybody.",
    )

    @model_validator(mode="before")
    @classmethod
    def _split_credentials(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, Mapping) or not isinstance(value.get("git"), str):
            return value
        written = value["git"]
        url, username, password = split_credentials(written)
        if username is None or value.get("username"):
            return value
        if value.get("password"):
            return value if password is not None else {**value, "git": url, "username": username}
        # https://TOKEN@host: the only credential is the secret.
        secret: Any = username if password is None else password
        if isinstance(info.context, fields.RegistryFile):
            raw = written.raw if isinstance(written, Interpolated) else written
            if has_clear_credentials(raw):
                return value  # `git` reports it
            secret = secret_fields.ReferencedSecret(secret, {"address": raw})
        found = {**value, "git": url, "password": secret}
        return found if password is None else {**found, "username": username or None}

    @field_validator("path")
    @classmethod
    def _has_one_source(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        if not {"gitlab", "project", "git"} <= info.data.keys():
            return path  # one of them has a problem of its own
        given = [key for key in ("gitlab", "git") if info.data[key]] + ["path"] * (path is not None)
        if info.data["project"] and "gitlab" not in given:
            raise InvalidValue("`project` requires `gitlab`, the name of its server", is_sentence=True)
        if "gitlab" in given and not info.data["project"]:
            raise InvalidValue("`gitlab` requires `project`, its path there (group/project)", is_sentence=True)
        if len(given) != 1:
            found = f"not {' and '.join(f'`{key}`' for key in given)}" if given else "none is given"
            raise InvalidValue(f"exactly one of `gitlab`, `git` and `path` is required: {found}", is_sentence=True)
        return path

    @field_validator("readers")
    @classmethod
    def _adds_no_readers_to_those_of_gitlab(
        cls, readers: tuple[str, ...] | None, info: ValidationInfo
    ) -> tuple[str, ...] | None:
        others = [each for each in readers or () if not each.startswith("project:")]
        if others and info.data.get("gitlab"):
            raise InvalidValue(
                f"cannot name {others[0]!r}: GitLab decides who reads its projects; only `project:` may be added"
            )
        return readers

    @field_validator("username", "password")
    @classmethod
    def _only_with_git(cls, value: T, info: ValidationInfo) -> T:
        if value is not None and "git" in info.data and not info.data["git"]:
            raise InvalidValue("is for `git` only; a GitLab server has its `token`")
        return value


class Group(ConfigModel):
    """All projects of a GitLab group and its subgroups with matching paths. They are registered automatically."""

    gitlab: fields.Name = Field(description="Name of the GitLab server.")
    group: fields.Group = Field(description="Path of the group.")
    include: fields.ListedGlobs = key((), "Gitignore patterns of project paths; only these, if any.")
    exclude: fields.ListedGlobs = key((), "Gitignore patterns of project paths that are left out.")
    archived: fields.Flag = key(False, "Register archived projects too.")
    discover: fields.ScheduleText = Field(
        "*/30 * * * *", description="When to look for new, moved and removed projects, in the time zone of the group."
    )
    schedule: fields.MaybeScheduleOrNever = key(
        None, "When each of the projects is synced; never (null): on request only.", **_NULL_IS_NEVER
    )
    timezone: fields.Timezone | None = key(None, "IANA time zone of both schedules.")
    collection: fields.Collection | None = key(None, "Qdrant collection of the projects.")
    chunk: ChunkOverride | None = key(None, "How files of the projects are split.")
    max_file_bytes: fields.FileBytes | None = key(None, "Larger files of the projects are skipped.")
    secrets: SecretsOverride | None = key(None, "What is done about secrets in their code.")

    def definition(self, name: str, project: str) -> dict[str, Any]:
        """The entry under `repositories` for a project of this group, ready for JSON. Keys that the group does not set
        are left to the defaults."""
        keys = {"schedule", "timezone", "collection", "chunk", "max_file_bytes", "secrets"}
        values = self.model_dump(mode="json", include=keys, exclude_none=True)
        given = {key: value for key, value in values.items() if value != {}}
        return {"name": name, "gitlab": self.gitlab, "project": project, **given}


class ResolvedRepository(Repository):
    """A repository with all defaults filled in. `schedule`: a crontab, or `never`, for which `timezone` is UTC.
    `server`: with `gitlab`."""

    model_config = ConfigDict(defer_build=True)

    schedule: str = NEVER
    timezone: str = "UTC"
    collection: str = ""
    chunk: Chunk = Chunk()
    max_file_bytes: int = 0
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    server: GitLabInstance | None = Field(None, exclude=True)
    policy: SecretsConfig = Field(SecretsConfig(), exclude=True)
    """The policy for secrets, with all defaults filled in: a change of the defaults alone changes no repository."""

    @property
    def kind(self) -> Literal["gitlab", "git", "path"]:
        if self.gitlab is not None:
            return "gitlab"
        return "path" if self.git is None else "git"

    @property
    def location(self) -> str:
        """Its folder, or its address without credentials."""
        # With the server's address: GitLab's project numbers are unique on one server only.
        return f"{self.server.url}/{self.project}" if self.server is not None else self.git or str(self.path)

    @property
    def definition(self) -> dict[str, Any]:
        """As JSON, with the keys of the registry file, all defaults filled in, and a reference for the password."""
        values = self.model_dump(mode="json", exclude_none=True)
        return {"branch": None, **values}


class Registry(ConfigModel):
    """The whole registry file."""

    gitlab: Listing[GitLabInstance] = ()
    defaults: fields.OrDefaults[Defaults] = Defaults()
    repositories: Listing[Repository] = ()
    groups: Listing[Group] = ()
    embedding: fields.OrDefaults[EmbeddingConfig] = EmbeddingConfig()
    qdrant: fields.OrDefaults[QdrantConfig] = QdrantConfig()
    index: fields.OrDefaults[IndexConfig] = IndexConfig()
    search: fields.OrDefaults[SearchConfig] = SearchConfig()
    daemon: fields.OrDefaults[DaemonConfig] = DaemonConfig()
    http: fields.OrDefaults[HttpConfig] = HttpConfig()
    audit: fields.OrDefaults[AuditConfig] = AuditConfig()

    @model_validator(mode="after")
    def _is_consistent(self) -> Registry:
        errors: list[InitErrorDetails] = [
            {"type": PydanticCustomError("contradiction", "{message}", {"message": message}), "loc": loc, "input": None}
            for loc, message in self._contradictions()
        ]
        if errors:
            raise ValidationError.from_exception_data("Registry", errors, hide_input=True)
        return self

    def _contradictions(self) -> Iterator[tuple[Loc, str]]:
        # One server may be listed under two names, and paths in GitLab ignore case.
        urls = {server.name: server.url for server in self.gitlab}
        places = [(urls.get(group.gitlab, group.gitlab), group.group.lower()) for group in self.groups]
        yield from _repeated("gitlab", "name", self.gitlab, [server.name for server in self.gitlab])
        yield from _repeated("repositories", "name", self.repositories, [each.name for each in self.repositories])
        yield from _repeated("groups", "group", self.groups, places)
        if self.http.gitlab is not None and self.http.gitlab not in urls:
            message = f"no server in the top-level `gitlab` has the name {self.http.gitlab!r}"
            yield ("http", "gitlab"), message + suggestion(self.http.gitlab, list(urls))
        for section in ("repositories", "groups"):
            for index, entry in enumerate(getattr(self, section)):
                for loc, message in self._entry_contradictions(entry):
                    yield (section, index, *loc), message

    def check(self, entry: Repository | Group) -> None:
        """Raises ConfigError if the entry contradicts this registry."""
        what = f"group {entry.group!r}" if isinstance(entry, Group) else f"repository {entry.name!r}"
        for _, message in self._entry_contradictions(entry):
            raise ConfigError(f"{what}: {message}")

    def _entry_contradictions(self, entry: Repository | Group) -> Iterator[tuple[Loc, str]]:
        names = [server.name for server in self.gitlab]
        if entry.gitlab is not None and entry.gitlab not in names:
            message = f"no server in the top-level `gitlab` has the name {entry.gitlab!r}"
            yield ("gitlab",), message + suggestion(entry.gitlab, names)
        chunk = entry.chunk or ChunkOverride()
        size = _first(chunk.size, self.defaults.chunk.size)
        if chunk.overlap is not None and chunk.overlap >= size:
            message = f"overlap must be below size: {chunk.overlap} is not below {size}"
            yield ("chunk", "overlap"), message + (" (which comes from the defaults)" if chunk.size is None else "")

    @property
    def access_server(self) -> GitLabInstance | None:
        """The server that decides who sees what; None with tokens alone."""
        return next((server for server in self.gitlab if server.name == self.http.gitlab), None)

    @property
    def searches(self) -> int:
        """Searches at a time in one daemon. Eight share its connections to the database with the runs."""
        return self.http.searches or (2 if self.embedding.provider == "local" else 8)

    @property
    def is_audited(self) -> bool:
        """Whether searches and reads are recorded."""
        return _first(self.audit.enabled, self.http.access == "gitlab")

    def resolved(self) -> tuple[ResolvedRepository, ...]:
        """The repositories that are listed by name, in the order of the file, without the projects of `groups`."""
        return tuple(map(self.resolve, self.repositories))

    def resolve(self, repository: Repository) -> ResolvedRepository:
        """`repository` with this registry's servers and defaults. Raises ConfigError if they contradict each other."""
        self.check(repository)
        usual, chunk = self.defaults.chunk, repository.chunk or ChunkOverride()
        size = _first(chunk.size, usual.size)
        overlap = _first(chunk.overlap, default_overlap(size, usual.size, usual.overlap))
        values = dict(self.defaults) | {key: value for key, value in repository if value is not None}
        values["chunk"] = Chunk.model_construct(size=size, overlap=overlap)
        own = dict(repository.secrets) if repository.secrets is not None else {}
        usual_policy, own = (
            dict(self.defaults.secrets),
            {name: value for name, value in own.items() if value is not None},
        )
        values["policy"] = SecretsConfig.model_construct(**(usual_policy | own))
        values["secrets"] = repository.secrets
        values["server"] = next((server for server in self.gitlab if server.name == repository.gitlab), None)
        if values["schedule"] == NEVER:
            values["timezone"] = "UTC"
        else:
            values["schedule"] = Schedule.parse(values["schedule"], values["timezone"], repository.name).cron
        if repository.password is not None:
            values.setdefault("username", "oauth2")
        return ResolvedRepository.model_construct(**values)


def _repeated(
    section: str, key: str, entries: Sequence[ConfigModel], identities: Sequence[Hashable]
) -> Iterator[tuple[Loc, str]]:
    """Entries with an identity that an entry before them has."""
    seen: dict[Hashable, int] = {}
    for index, identity in enumerate(identities):
        first = seen.setdefault(identity, index)
        if first != index:
            yield (section, index, key), f"{getattr(entries[index], key)!r} is there already: {section}[{first}]"


def _first(value: T | None, default: T) -> T:
    return default if value is None else value
