"""What an operation is, and who may perform it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from reposync.errors import RepoSyncError, UsageError
from reposync.store.status import RunTrigger
from reposync.visible import EVERYTHING, Visible
from reposync.words import escape_unprintable

if TYPE_CHECKING:
    from reposync.app.application import Application

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


class Role(IntEnum):
    """Each includes the ones before."""

    READ = 1
    OPERATE = 2


class RoleMissing(RepoSyncError, code="FORBIDDEN", status=403):
    """The actor is known, but its role does not allow this."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asks. `name`: for the history. `credential`: identifies a token or session without revealing it; its share of
    what is limited is its own. `is_local`: a person at a terminal of this machine, who may read the state folder, and
    so may register folders and addresses that clients over HTTP may not. `visible`: the repositories that exist for the
    actor. `maintains`: those of which they may start and pause syncs."""

    name: str
    role: Role
    trigger: RunTrigger = RunTrigger.HTTP
    credential: str = ""
    is_local: bool = False
    # Without defaults: whoever makes an actor decides what it sees.
    visible: Visible = field(kw_only=True)
    maintains: Visible = field(kw_only=True)

    @classmethod
    def at_terminal(cls, name: str) -> Self:
        return cls(name, Role.OPERATE, RunTrigger.COMMAND, is_local=True, visible=EVERYTHING, maintains=EVERYTHING)

    def require(self, role: Role) -> None:
        """Raises RoleMissing."""
        if self.role < role:
            raise RoleMissing(f"This token may {self.role.name.lower()}, but not {role.name.lower()}.")


class Arguments(BaseModel):
    """The arguments of an operation, the same for every front end. An unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NoArguments(Arguments):
    """Of an operation without any but what its path names."""


NOTHING = NoArguments()


A_contra = TypeVar("A_contra", bound=BaseModel, contravariant=True)
A = TypeVar("A", bound=BaseModel)
T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


def read_arguments(kind: type[A], given: Mapping[str, Any]) -> A:
    """Null and an empty text are as if the key were not there: forms, and some agents, send them for every argument.
    Raises UsageError with the first problem of each key."""
    try:
        return kind.model_validate({key: value for key, value in given.items() if value not in (None, "")})
    except ValidationError as error:
        problems = {".".join(map(str, problem["loc"])): problem["msg"] for problem in reversed(error.errors())}
        listed = [f"`{escape_unprintable(key[:100])}`: {problem}" for key, problem in reversed(problems.items())]
        raise UsageError(f"Invalid arguments: {'; '.join(listed)}.") from None


class Act(Protocol[A_contra, T_co]):
    """The function of an operation. `named`: what its path names, such as `name` or `run_id`."""

    def __call__(self, app: Application, actor: Actor, arguments: A_contra, /, **named: str) -> Awaitable[T_co]: ...


@dataclass(frozen=True, slots=True)
class Operation(Generic[A, T]):
    """`path`: over HTTP, below `/api/v1`; its placeholders are keyword arguments of `act`. `answer`: the type of the
    document, from which HTTP describes it and commands read it. `uses_index`: commands start the embedded engine while
    they import what the operation needs. `executes`: a run follows, for which somebody must be there. `is_slow`: it may
    take minutes."""

    act: Act[A, T]
    method: Method
    path: str
    arguments: type[A]
    answer: Any
    role: Role
    uses_index: bool = False
    executes: bool = False
    is_slow: bool = False

    @property
    def name(self) -> str:
        return str(getattr(self.act, "__name__", ""))

    async def __call__(self, app: Application, actor: Actor, arguments: A, /, **named: str) -> T:
        """Raises RoleMissing, and what the operation does."""
        actor.require(self.role)
        return await self.act(app, actor, arguments, **named)


def operation(
    method: Method, path: str, arguments: type[A], answer: Any, *, role: Role | None = None, **properties: bool
) -> Callable[[Callable[..., Awaitable[T]]], Operation[A, T]]:
    """Make an operation of a function. `role`: by default that of readers for GET, else that of operators.
    `properties`: the last fields of `Operation`."""
    needed = role or (Role.READ if method == "GET" else Role.OPERATE)

    def decorate(act: Callable[..., Awaitable[T]]) -> Operation[A, T]:
        return Operation(act, method, path, arguments, answer, needed, **properties)

    return decorate
