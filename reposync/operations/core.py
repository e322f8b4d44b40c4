"""What an operation is, and who may perform it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, Self, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from reposync.errors import RepoSyncError, UsageError
from reposync.store.status import RunTrigger
from reposync.visible import EVERYTHING, Visible
from reposync.visible import NOTHING as NOTHING_VISIBLE
from reposync.words import escape_unprintable

if TYPE_CHECKING:
    from reposync.app.application import Application

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


class Role(IntEnum):
    """Each includes the ones before."""

    READ = 1
    OPERATE = 2


class RoleMissing(RepoSyncError, code="FORBIDDEN", status=403):
    """The actor is known, but its role, or what it sees, does not allow this."""


class Rule(Enum):
    """Who may perform an operation, and of which repositories. Nobody gets to know by an operation that a repository
    exists which they may not see."""

    READ = "read"
    """Everybody; the repositories that they see."""
    READ_EVERYTHING = "read everything"
    """Actors who see all repositories."""
    MAINTAIN = "maintain"
    """Actors who maintain the repository, or that of the run, which the path names. Without one: the repositories that
    they maintain."""
    OPERATE = "operate"
    """Operators who see all repositories."""

    async def application(
        self, app: Application, actor: Actor, named: Mapping[str, Any]
    ) -> tuple[Application, Mapping[str, str]]:
        """The application as the actor may use it, and arguments beside `named`, which is what the path of the
        operation names: `identity` of the repository that the actor was found to maintain. The operation acts on that
        one, because a different one may have its name by then; a run's id is always of the same. Raises RoleMissing,
        and RepositoryNotFound and RunNotFound for what does not exist for the actor."""
        actor.require(self)
        if self is not Rule.MAINTAIN:
            return app.limited(actor.visible), {}
        maintained = actor.visible & actor.maintains
        if maintained.is_everything:
            return app, {}
        seen, found = app.limited(actor.visible), dict[str, str]()
        if "name" in named:
            identity = found["identity"] = (await seen.repositories.get(named["name"])).id
        elif "run_id" in named:
            identity = (await seen.history.get(named["run_id"])).repository_id
        else:
            return app.limited(maintained), {}
        if identity not in maintained:
            raise RoleMissing("You may read this repository, but not operate it.")
        # It changes rows, which a limited application cannot.
        return app, found


@dataclass(frozen=True, slots=True)
class Actor:
    """The client of an operation."""

    name: str
    """The name for the history."""
    role: Role
    trigger: RunTrigger = RunTrigger.HTTP
    credential: str = ""
    """This identifies a token or session without revealing it; its share of what is limited is its own."""
    is_local: bool = False
    """A person at a terminal of this machine, who may read the state folder, and so may register folders and addresses
    that clients over HTTP may not."""
    via: str = "http"
    """This is http, page, mcp or command."""
    address: str = ""
    """The address of the client."""
    # Without defaults: whoever makes an actor decides what it sees.
    visible: Visible = field(kw_only=True)
    """The repositories that exist for the actor."""
    maintains: Visible = field(kw_only=True)
    """The repositories whose syncs they may start and pause."""

    @classmethod
    def at_terminal(cls, name: str) -> Self:
        return cls(
            name,
            Role.OPERATE,
            RunTrigger.COMMAND,
            is_local=True,
            via="command",
            visible=EVERYTHING,
            maintains=EVERYTHING,
        )

    def may(self, rule: Rule) -> bool:
        """Whether there may be something for which the rule allows it."""
        match rule:
            case Rule.READ:
                return True
            case Rule.READ_EVERYTHING:
                return self.visible.is_everything
            case Rule.MAINTAIN:
                return self.visible & self.maintains != NOTHING_VISIBLE
            case Rule.OPERATE:
                return self.role >= Role.OPERATE and self.visible.is_everything

    def require(self, rule: Rule) -> None:
        """Raises RoleMissing."""
        if self.may(rule):
            return
        if rule is Rule.READ_EVERYTHING or self.role >= Role.OPERATE:
            raise RoleMissing("This is for those who may see all repositories.")
        raise RoleMissing("This token may read, but not operate.")


class Arguments(BaseModel):
    """The arguments of an operation, the same for every front end. An unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NoArguments(Arguments):
    """The arguments of an operation that has none but what its path names."""


NOTHING = NoArguments()


A_contra = TypeVar("A_contra", bound=BaseModel, contravariant=True)
A = TypeVar("A", bound=BaseModel)
T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
P = ParamSpec("P")


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
    """The function of an operation. `app`: as the rule gives it. `named`: what its path names, such as `name` or
    `run_id`, and what the rule found out about it."""

    def __call__(self, app: Application, actor: Actor, arguments: A_contra, /, **named: str) -> Awaitable[T_co]: ...


@dataclass(frozen=True, slots=True)
class Operation(Generic[A, T]):
    """A function that front ends perform, with its route and its rule."""

    act: Act[A, T]
    method: Method
    path: str
    """The path over HTTP, below `/api/v1`; its placeholders are keyword arguments of `act`."""
    arguments: type[A]
    answer: Any
    """The type of the document, from which HTTP describes it and commands read it."""
    rule: Rule
    uses_index: bool = False
    """Commands start the embedded engine while they import what the operation needs."""
    executes: bool = False
    """A run follows, for which somebody must be there."""
    is_slow: bool = False
    """It may take minutes."""
    is_audited: bool = False
    """Its use is recorded, if the operator wants that."""

    @property
    def name(self) -> str:
        return str(getattr(self.act, "__name__", ""))

    async def __call__(self, app: Application, actor: Actor, arguments: A, /, **named: str) -> T:
        """Raises what the rule and the operation do."""

        async def perform() -> T:
            allowed, found = await self.rule.application(app, actor, named)
            return await self.act(allowed, actor, arguments, **named, **found)

        return await (_audited(app, actor, self.name, arguments, named, perform) if self.is_audited else perform())


async def _audited(
    app: Application,
    actor: Actor,
    name: str,
    asked: object,
    named: Mapping[str, Any],
    perform: Callable[[], Awaitable[T]],
) -> T:
    if not app.configuration.registry.is_audited:
        return await perform()
    from reposync.app.auditing import recording

    with recording(app, actor, name, asked, named) as entry:
        answer = await perform()
        entry.shows(answer)
        return answer


def operation(
    method: Method, path: str, arguments: type[A], answer: Any, *, rule: Rule, **properties: bool
) -> Callable[[Callable[..., Awaitable[T]]], Operation[A, T]]:
    """Make an operation of a function. `properties`: the last fields of `Operation`."""

    def decorate(act: Callable[..., Awaitable[T]]) -> Operation[A, T]:
        return Operation(act, method, path, arguments, answer, rule, **properties)

    return decorate


def ruled(
    rule: Rule, *, audited: str | None = None
) -> Callable[
    [Callable[Concatenate[Application, Actor, P], Awaitable[T]]],
    Callable[Concatenate[Application, Actor, P], Awaitable[T]],
]:
    """For what front ends call beside operations: the function gets the application as the rule gives it. What it names
    is among its keyword arguments. `audited`: the operation as which it is recorded."""

    def decorate(
        act: Callable[Concatenate[Application, Actor, P], Awaitable[T]],
    ) -> Callable[Concatenate[Application, Actor, P], Awaitable[T]]:
        @wraps(act)
        async def call(app: Application, actor: Actor, /, *arguments: P.args, **named: P.kwargs) -> T:
            async def perform() -> T:
                allowed, found = await rule.application(app, actor, named)
                return cast(T, await cast(Any, act)(allowed, actor, *arguments, **named, **found))

            if audited is None:
                return await perform()
            return await _audited(app, actor, audited, next(iter(arguments), None), named, perform)

        vars(call)["rule"] = rule
        return call

    return decorate
