"""The GitLab groups whose projects register themselves: listed, registered and removed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, RootModel
from pydantic_core import CoreSchema

from reposync.config.registry import Group as Definition
from reposync.errors import ConfigError
from reposync.operations.core import Actor, Arguments, NoArguments, Rule, operation
from reposync.operations.fields import MAX_NAME_CHARS, PlainText
from reposync.operations.repositories import COMMAND, HTTP, entry_schema
from reposync.store.status import RunTrigger

if TYPE_CHECKING:
    from reposync.app.application import Application
    from reposync.store.tables import ProjectGroup


class GroupDetail(BaseModel):
    """`definition`: the keys of its entry, as in the registry file; the others have the defaults. `origin`: `config`
    (the registry file), `command` or `http`. `next_listing_at`: when its projects are listed next. `repositories`: how
    many it has registered that are active."""

    group: str
    gitlab: str
    definition: dict[str, Any]
    origin: str
    next_listing_at: datetime
    repositories: int


class GroupList(BaseModel):
    items: list[GroupDetail]


@operation("GET", "/groups", NoArguments, GroupList, rule=Rule.READ_EVERYTHING)
async def list_groups(app: Application, actor: Actor, asked: NoArguments) -> GroupList:
    """The registered groups, by server and path."""
    from reposync.store.registry import ProjectGroups

    return GroupList(items=await _details(app, await ProjectGroups(app.database).all()))


async def _details(app: Application, rows: Iterable[ProjectGroup]) -> list[GroupDetail]:
    keys = [row.group_key for row in await app.repositories.list() if row.is_active]
    return [
        GroupDetail(
            group=row.path,
            gitlab=row.definition["gitlab"],
            definition=row.definition,
            origin=row.origin,
            next_listing_at=row.due_at,
            repositories=keys.count(row.key),
        )
        for row in rows
        if row.definition is not None  # else it is one of a file that this version has not applied yet
    ]


class NewGroup(RootModel[dict[str, Any]]):
    """The keys of an entry under `groups` of the registry file, with the same validation; but `${VARIABLE}` is plain
    text here. `group` may be left out: the path has it."""

    model_config = ConfigDict(frozen=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler, /) -> dict[str, Any]:
        return entry_schema(cls, Definition, handler) | {"required": ["gitlab"]}


@operation("PUT", "/groups/{group}", NewGroup, GroupDetail, rule=Rule.OPERATE)
async def put_group(app: Application, actor: Actor, asked: NewGroup, *, group: str) -> GroupDetail:
    """Register all projects of a GitLab group, or give a group that was registered over HTTP or by command exactly this
    definition. Its projects are listed within seconds. Repeating the request changes nothing. A group of the registry
    file is changed in the file."""
    from reposync.catalog import group_entries

    if asked.root.get("group", group) != group:
        raise ConfigError("`group` differs from the group in the path.")
    origin = COMMAND if actor.trigger is RunTrigger.COMMAND else HTTP
    definition = {**asked.root, "group": group}
    row = await group_entries.put_group(app.database, app.configuration.registry, definition, origin)
    return (await _details(app, [row]))[0]


class ServerOfGroup(Arguments):
    gitlab: PlainText | None = Field(
        None, max_length=MAX_NAME_CHARS, description="Name of its GitLab server, if several have a group of that path."
    )


class RemovedGroup(BaseModel):
    """`deactivated`: its repositories, which are not synced any more. Their indexes and history stay."""

    group: str
    gitlab: str
    deactivated: list[str]


@operation("DELETE", "/groups/{group}", ServerOfGroup, RemovedGroup, rule=Rule.OPERATE)
async def remove_group(app: Application, actor: Actor, asked: ServerOfGroup, *, group: str) -> RemovedGroup:
    """Remove a group that was registered over HTTP or by command. Its repositories are deactivated; their indexes and
    history stay. They become active again if the group is registered again."""
    from reposync.catalog import group_entries

    row, deactivated = await group_entries.remove_group(app.database, group, asked.gitlab)
    return RemovedGroup(group=row.path, gitlab=(row.definition or {})["gitlab"], deactivated=deactivated)
