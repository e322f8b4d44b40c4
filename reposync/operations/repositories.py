"""The registered repositories: listed, registered, changed, removed, and adopted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, RootModel, StrictBool, ValidationError
from pydantic_core import CoreSchema

from reposync.catalog.overview import Overview as Overview
from reposync.catalog.overview import RepositoryDetail as RepositoryDetail
from reposync.catalog.overview import overviews, repository_detail
from reposync.catalog.targets import add_repository, change_repository, changeable_definition, request_removal
from reposync.config.loading import checked_repository
from reposync.config.registry import Repository as Definition
from reposync.errors import ConfigError, RepositoryChanged, RepositoryExists, RepositoryNotFound, UsageError
from reposync.operations.core import Actor, NoArguments, Rule, operation, ruled
from reposync.operations.fields import NamesArguments, Page, PlainText, page_of_names
from reposync.operations.hosts import check_source
from reposync.operations.runs import Run, ask, shown
from reposync.store.status import RunTrigger
from reposync.words import suggestion

if TYPE_CHECKING:
    from reposync.app.application import Application

HTTP, COMMAND = "http", "command"
"""Origins of repositories that are registered here."""
NOT_STORED = frozenset({"username", "password"})
"""Secrets are not stored in the database."""
IDENTITY = frozenset({"name", "gitlab", "project", "git", "path"})
"""With a different name or source it is a different repository."""
CHANGEABLE = frozenset(Definition.model_fields) - NOT_STORED - IDENTITY
_MAX_KEY_CHARS = 200


class RepositoryPage(Page[Overview]):
    """`next_cursor` is null on the last page."""


class RepositoryFilters(NamesArguments):
    state: Literal["active", "paused", "inactive"] | None = None


@operation("GET", "/repositories", RepositoryFilters, RepositoryPage, rule=Rule.READ, is_audited=True)
async def list_repositories(app: Application, actor: Actor, asked: RepositoryFilters) -> RepositoryPage:
    """The registered repositories, by name."""
    states = {row.name: row.state for row in await app.repositories.states()}
    names = [name for name, state in states.items() if asked.state in (None, state)]
    page, next_cursor = page_of_names(names, asked)
    items = await overviews(app.repositories, app.manifests, app.history, page) if page else []
    return RepositoryPage(items=items, next_cursor=next_cursor)


@operation("GET", "/repositories/{name}", NoArguments, RepositoryDetail, rule=Rule.READ)
async def get_repository(app: Application, actor: Actor, asked: NoArguments, *, name: str) -> RepositoryDetail:
    """One repository."""
    return await _detail(app, name)


async def _detail(app: Application, name: str, identity: str | None = None) -> RepositoryDetail:
    return (await repository_detail(app.repositories, app.manifests, app.history, name, identity))[0]


class NewRepository(RootModel[dict[str, Any]]):
    """The keys of an entry under `repositories` of the registry file, with the same validation: the source is `git`,
    `path`, or `gitlab` with `project`. But `${VARIABLE}` is plain text here, and passwords are refused."""

    model_config = ConfigDict(frozen=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler, /) -> dict[str, Any]:
        return entry_schema(cls, Definition, handler, NOT_STORED)


def entry_schema(
    kind: type[BaseModel], entry: type[BaseModel], handler: GetJsonSchemaHandler, left_out: Collection[str] = ()
) -> dict[str, Any]:
    """The JSON schema of a body that is validated as an entry of the registry file is."""
    schema = handler.resolve_ref_schema(handler(entry.__pydantic_core_schema__))
    properties = {key: value for key, value in schema["properties"].items() if key not in left_out}
    # Of `oneOf` generators of clients make one type for each choice, which lacks all other keys.
    kept = {key: value for key, value in schema.items() if key != "oneOf"}
    return {**kept, "properties": properties, "title": kind.__name__, "description": kind.__doc__}


@operation("POST", "/repositories", NewRepository, RepositoryDetail, rule=Rule.OPERATE)
async def register(app: Application, actor: Actor, asked: NewRepository) -> RepositoryDetail:
    """Register a repository. It is synced within seconds, unless its schedule is never. Folders of the server, and
    addresses outside the public internet, are refused over HTTP unless the operator allows them."""
    definition = asked.root
    for key in NOT_STORED & definition.keys():
        raise ConfigError(f"`{key}` cannot be set here.", remedy="The registry file can have it.")
    registry = app.configuration.registry
    resolved = checked_repository(registry, definition)
    await check_source(resolved, allow_local=actor.is_local or registry.http.allow_local_sources)
    origin = COMMAND if actor.trigger is RunTrigger.COMMAND else HTTP
    return await _detail(app, (await add_repository(app.catalog, definition, origin=origin)).name)


@operation("PUT", "/repositories/{name}", NewRepository, RepositoryDetail, rule=Rule.OPERATE)
async def put_repository(app: Application, actor: Actor, asked: NewRepository, *, name: str) -> RepositoryDetail:
    """Register a repository, or give one that was registered over HTTP or by command exactly this definition; its
    source cannot be changed. Repeating the request changes nothing."""
    definition = {**asked.root, "name": name}
    if asked.root.get("name", name) != name:
        raise ConfigError("`name` differs from the name in the path.")
    try:
        former = changeable_definition(await app.repositories.get(name))
    except RepositoryNotFound:
        try:
            return await register(app, actor, NewRepository(definition))
        except RepositoryExists:  # by somebody else, at this moment
            former = changeable_definition(await app.repositories.get(name))
    for key in IDENTITY:
        if former.get(key) != definition.get(key):
            raise ConfigError(f"`{key}` cannot be changed.", remedy="Remove the repository first.")
    changed = {key: definition.get(key) for key in CHANGEABLE if former.get(key) != definition.get(key)}
    unknown = definition.keys() - CHANGEABLE - IDENTITY
    return await change(app, actor, Change({**changed, **{key: definition[key] for key in unknown}}), name=name)


class Pause(BaseModel):
    """The keys of a change that pause and resume."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    is_active: StrictBool | None = Field(None, description="false pauses its schedule, true resumes it.")
    paused_reason: Annotated[PlainText, Field(strict=True, min_length=1, max_length=500)] | None = Field(
        None, description="Shown with the paused repository; requires `is_active: false`."
    )


class Change(RootModel[dict[str, Any]]):
    """Keys of the definition, and those of `Pause`. Null restores the default."""

    model_config = ConfigDict(frozen=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler, /) -> dict[str, Any]:
        entry = entry_schema(cls, Definition, handler, IDENTITY | NOT_STORED)
        pause = handler.resolve_ref_schema(handler(Pause.__pydantic_core_schema__))
        # Without what an entry requires.
        kept = {key: entry[key] for key in ("title", "description", "type", "additionalProperties")}
        return {**kept, "properties": entry["properties"] | pause["properties"]}


@operation("PATCH", "/repositories/{name}", Change, RepositoryDetail, rule=Rule.MAINTAIN)
async def change(
    app: Application, actor: Actor, asked: Change, *, name: str, identity: str | None = None
) -> RepositoryDetail:
    """Pause or resume a repository, or change its definition. Omitted keys stay unchanged; null restores the default. A
    repository of the registry file or of a group can be paused and resumed here; everything else is changed in the
    file. Concurrent changes of different keys do not undo each other."""
    return await _change(app, actor, asked, name, identity, None)


@ruled(Rule.MAINTAIN)
async def change_if(
    app: Application,
    actor: Actor,
    asked: Change,
    *,
    name: str,
    versions: Collection[str] | None,
    identity: str | None = None,
) -> RepositoryDetail:
    """As `change`, if the repository has one of the `versions`, as the client knows it. Raises RepositoryChanged if it
    was changed since."""
    return await _change(app, actor, asked, name, identity, versions)


async def _change(
    app: Application,
    actor: Actor,
    asked: Change,
    name: str,
    identity: str | None,
    versions: Collection[str] | None,
) -> RepositoryDetail:
    pause, definition = _split(asked.root)
    if definition:
        actor.require(Rule.OPERATE)
    expected = None if versions is None else await app.repositories.get(name, identity)
    if versions is not None and expected is not None and expected.version not in versions:
        raise RepositoryChanged(
            f"{name!r} was changed since you have read it; nothing was written.", remedy="Read it again."
        )
    if definition:
        changed = await change_repository(app.catalog, name, definition, expected=expected)
        expected = changed if expected is not None else None
    if pause.is_active is False:
        reason = pause.paused_reason or "Paused on request."
        await app.repositories.pause(name, reason, identity, expected=expected, by=actor.name)
    elif pause.is_active:
        await app.repositories.resume(name, identity, expected=expected)
    return await _detail(app, name, identity)


def _split(changes: Mapping[str, Any]) -> tuple[Pause, dict[str, Any]]:
    """What pauses or resumes, and what changes the definition. Raises ConfigError."""
    known = CHANGEABLE | Pause.model_fields.keys()
    for key in changes:
        if key in IDENTITY | NOT_STORED:
            raise ConfigError(f"`{key}` cannot be changed.", remedy="Register a new repository.")
        if key not in known:
            message = f"unknown key `{key[:_MAX_KEY_CHARS]}`{suggestion(key, known)}"
            raise ConfigError(message if message.endswith("?") else f"{message}.")
    try:
        pause = Pause.model_validate({key: value for key, value in changes.items() if key in Pause.model_fields})
    except ValidationError as error:
        problem = error.errors()[0]
        raise UsageError(f"`{'.'.join(map(str, problem['loc']))}`: {problem['msg']}.") from None
    if pause.paused_reason is not None and pause.is_active is not False:
        raise ConfigError("`paused_reason` requires `is_active: false`.")
    return pause, {key: value for key, value in changes.items() if key in CHANGEABLE}


@operation("DELETE", "/repositories/{name}", NoArguments, Run, rule=Rule.OPERATE, executes=True, uses_index=True)
async def remove(app: Application, actor: Actor, asked: NoArguments, *, name: str) -> Run:
    """Remove a repository with its index. A run does it, after the current one has ended. Its history stays."""
    run = await request_removal(app.repositories, app.runs, name, ask(app, actor, removal=True))
    return shown(app.history, run)


class Adoption(BaseModel):
    """`former_project_id`: the number of the project that was deleted."""

    former_project_id: int
    repository: RepositoryDetail


@operation("POST", "/repositories/{name}/adopt", NoArguments, Adoption, rule=Rule.OPERATE)
async def adopt(app: Application, actor: Actor, asked: NoArguments, *, name: str) -> Adoption:
    """Sync the project that was created again at the path of the repository. The index stays until its first sync has
    ended."""
    from reposync.app.adoption import adopt_project

    former, row = await adopt_project(app, name)
    return Adoption(former_project_id=former, repository=await _detail(app, row.name))
