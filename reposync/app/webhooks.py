"""GitLab webhooks: authentication, the pushed branches, and the runs that a push starts.

The run asks GitLab for the head of the branch, so a delivery that arrives twice, late or out of order does no harm.
"""

from __future__ import annotations

import hmac
import logging
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from reposync.access.changes import RightsChange, read_change
from reposync.app.application import Application
from reposync.catalog.targets import server_at
from reposync.config.gitlab_instance import GitLabInstance, signing_key
from reposync.config.secret_fields import known_text
from reposync.errors import RepositoryNotFound, RepoSyncError
from reposync.store.repository import Repository
from reposync.store.run import Ask
from reposync.store.status import RunStatus, RunTrigger

log = logging.getLogger(__name__)

M = TypeVar("M", bound=BaseModel)

LONGEST_DELAY_SECONDS = 300.0
"""Between a signature's time and ours, as the Standard Webhooks specification recommends."""

NO_COMMIT = frozenset({"0" * 40, "0" * 64})
BRANCHES, TAGS = "refs/heads/", "refs/tags/"
MAX_CHANGES = 10_000
_MAX_SIGNATURES = 10
# A UUID has 36.
_DELIVERY_CHARS = 64


class WebhooksOff(RepoSyncError, code="WEBHOOKS_OFF", status=403):
    """No server of the registry has a secret for webhooks."""


class WebhookSecretMissing(RepoSyncError, code="WEBHOOK_SECRET_MISSING", status=503):
    """This pod does not have the secrets of webhooks; a different pod may. GitLab retries the delivery."""


class WebhookRefused(RepoSyncError, code="WEBHOOK_REFUSED", status=401):
    """Neither the secret token nor the signature is valid."""


class WebhookInvalid(RepoSyncError, code="WEBHOOK_INVALID", status=422):
    """The sender is authenticated, but the delivery is not one of GitLab's."""


# Authentication ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Credentials:
    """Headers that authenticate a delivery; empty if missing."""

    token: str = ""
    message_id: str = ""
    timestamp: str = ""
    signature: str = ""


def listening(servers: Sequence[GitLabInstance]) -> list[GitLabInstance]:
    """The servers whose deliveries can be authenticated. Raises WebhooksOff if there is none."""
    found = [each for each in servers if known_text(each.webhook_secret) or known_text(each.webhook_signing)]
    if not found and any(each.webhook_secret or each.webhook_signing for each in servers):
        raise WebhookSecretMissing(
            "This pod lacks the environment variables with the webhook secrets; a different pod may have them."
        )
    if not found:
        raise WebhooksOff(
            "Webhooks are off: no server of the registry has a webhook secret.",
            remedy="Set `webhook_secret` or `webhook_signing` of the server under `gitlab`.",
        )
    return found


def may_have_sent(server: GitLabInstance, given: Credentials) -> bool:
    """By the headers alone: the body is read only then. The secret token is compared in constant time, and does not
    count for a server that signs: the signature must be valid then, as GitLab recommends for the transition."""
    if _is_signed(server, given):
        return True
    secret = (known_text(server.webhook_secret) or "").encode()
    return bool(given.token) and hmac.compare_digest(secret, given.token.encode("latin-1", "replace"))


def has_sent(server: GitLabInstance, given: Credentials, body: bytes | bytearray, now: float) -> bool:
    """Whether this server has sent it: whether its signing token signed `body`, if it signs (Standard Webhooks: `v1,`
    and the base64 of HMAC-SHA256 over `id.timestamp.body`; several signatures are separated by spaces). `now` in epoch
    seconds. Raises WebhookRefused for a valid signature that is too old or from the future."""
    if not _is_signed(server, given):
        return True
    if (key := signing_key(known_text(server.webhook_signing) or "")) is None:
        return False
    made = hmac.new(key, f"{given.message_id}.{given.timestamp}.".encode("latin-1", "replace"), sha256)
    made.update(body)
    right = b"v1," + b64encode(made.digest())
    offered = [each.encode("latin-1", "replace") for each in given.signature.split(" ")[:_MAX_SIGNATURES]]
    if not sum(hmac.compare_digest(right, each) for each in offered):
        return False
    time = given.timestamp
    is_time = time.isascii() and time.isdigit() and len(time) < 16
    if not (is_time and abs(now - float(time)) <= LONGEST_DELAY_SECONDS):
        raise WebhookRefused(
            f"The signature is valid, but not of the last {LONGEST_DELAY_SECONDS:.0f} s.",
            remedy="Check the clocks of both machines; send an old delivery again from GitLab's list of recent events.",
        )
    return True


def _is_signed(server: GitLabInstance, given: Credentials) -> bool:
    return bool(given.signature and known_text(server.webhook_signing))


# Events --------------------------------------------------------------------------------------------------------------

_Text = Annotated[str, Field(max_length=4096)]
_Commit = Annotated[str, Field(pattern="^(?:[0-9a-f]{40}|[0-9a-f]{64})$")]
_ProjectId = Annotated[int, Field(gt=0, lt=2**63, strict=True)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)


class PushedProject(_Section):
    path_with_namespace: _Text
    default_branch: _Text | None = None
    web_url: _Text = ""

    @property
    def path(self) -> str:
        return self.path_with_namespace.strip("/")


class _RefChange(_Section):
    ref: _Text
    after: _Commit

    @property
    def commit(self) -> str | None:
        """None if the branch was deleted."""
        return None if self.after in NO_COMMIT else self.after


class PushPayload(_RefChange):
    """The fields of GitLab's push event that are used."""

    project_id: _ProjectId
    project: PushedProject

    @property
    def changes(self) -> tuple[_RefChange, ...]:
        return (self,)


class _RepositoryUpdate(_Section):
    """Only from system hooks: one event for a push of any number of branches."""

    project_id: _ProjectId
    project: PushedProject
    changes: Annotated[tuple[_RefChange, ...], Field(max_length=MAX_CHANGES)]


Push = PushPayload | _RepositoryUpdate


class _SystemEvent(_Section):
    event_name: _Text


class Reason(StrEnum):
    """Why a delivery, or one of its repositories, starts no run. They are no errors: GitLab disables a hook for a while
    after four errors in a row."""

    OTHER_EVENT = "other_event"
    TAG_PUSH = "tag_push"
    UNKNOWN_PROJECT = "unknown_project"
    OTHER_BRANCH = "other_branch"
    BRANCH_DELETED = "branch_deleted"
    PAUSED = "paused"
    INACTIVE = "inactive"
    ALREADY_INDEXED = "already_indexed"


def read_event(kind: str, body: bytes | bytearray) -> Push | Reason:
    """`kind`: the X-Gitlab-Event header. Raises WebhookInvalid."""
    if not kind.endswith(" Hook"):
        raise WebhookInvalid("There is no X-Gitlab-Event header that names an event of GitLab.")
    name = _parsed(_SystemEvent, body).event_name if kind == "System Hook" else kind
    match name:
        case "Push Hook" | "push":
            return _parsed(PushPayload, body)
        case "repository_update":
            return _parsed(_RepositoryUpdate, body)
        case "Tag Push Hook" | "tag_push":
            return Reason.TAG_PUSH
        case _:  # also a renamed or transferred project, which keeps its number
            return Reason.OTHER_EVENT


def read_rights_change(kind: str, body: bytes | bytearray) -> RightsChange | None:
    """Read the body of a system hook; None for an event that changes no rights. Raises WebhookInvalid."""
    if kind != "System Hook":
        raise WebhookInvalid(
            "This is not an event of a system hook.", remedy="Add the hook in the Admin area of GitLab."
        )
    try:
        return read_change(body)
    except ValidationError as error:
        raise _invalid(error) from None


def _parsed(model: type[M], body: bytes | bytearray) -> M:
    try:
        # 25 MB take 20 ms: unused fields never become Python objects. Nesting over 200 levels is refused.
        return model.model_validate_json(body)
    except ValidationError as error:
        raise _invalid(error) from None


def _invalid(error: ValidationError) -> WebhookInvalid:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"])) or "the body"
    return WebhookInvalid(
        f"This is not an event as GitLab sends it: {where}: {first['msg']}.",
        remedy="If the hook has a custom template, remove it.",
    )


# Runs ----------------------------------------------------------------------------------------------------------------


class TriggeredRun(BaseModel):
    """`is_new` is false if the run was already queued when the push arrived."""

    repository: str
    run_id: str
    status: RunStatus
    is_new: bool


class Ignored(BaseModel):
    """`repository` is null if the reason applies to the whole delivery."""

    repository: str | None
    reason: Reason
    message: str


Outcome = TriggeredRun | Ignored


async def receive_push(
    app: Application, push: Push, senders: Sequence[GitLabInstance], delivery: str = ""
) -> list[Outcome]:
    """Queue a run for each repository whose branch moved; returns the outcome of each. `senders`: the servers that may
    have sent the push. `delivery`: GitLab's id, for the history. Raises StoreUnavailable."""
    branches = [change for change in push.changes if change.ref.startswith(BRANCHES)]
    if not branches:
        is_tag = any(change.ref.startswith(TAGS) for change in push.changes)
        return [ignored_push(Reason.TAG_PUSH if is_tag else Reason.OTHER_BRANCH)]
    urls, path = list(dict.fromkeys(server.url for server in senders)), push.project.path
    # If several servers share a secret, the project's URL in the delivery decides.
    urls = [url for url in urls if push.project.web_url.lower() == f"{url}/{path}".lower()] or urls
    places = {f"{url}/{path}{end}".lower() for url in urls for end in ("", ".git")}
    rows = await app.repositories.of_project(push.project_id, places)
    # Project numbers are unique on one server only.
    registered = [row for row in rows if server_at(app.configuration.registry, row.location) in urls]
    if not registered:
        message = await _unknown_project(app, push, senders)
        return [Ignored(repository=None, reason=Reason.UNKNOWN_PROJECT, message=message)]
    asked_by = f"push to {path}" + (f", delivery {delivery[:_DELIVERY_CHARS]}" if delivery else "")
    return [await _trigger(app, row, push.project.default_branch, branches, asked_by) for row in registered]


async def _unknown_project(app: Application, push: Push, senders: Sequence[GitLabInstance]) -> str:
    """For a project with an unknown number, which may be one that was created again."""
    path, number = push.project.path, push.project_id
    for server in senders:
        for row in await app.repositories.find(source="gitlab", location=f"{server.url}/{path}"):
            return (
                f"{path} is number {number}, but {row.name} is registered as number {row.project_id}. "
                f"If the project was created again: `reposync repos adopt {row.name}`."
            )
    return f"No registered repository is project {path} (number {number})."


def ignored_push(reason: Reason) -> Ignored:
    """For a delivery without a repository."""
    message = "Tags are not synced." if reason is Reason.TAG_PUSH else "Only pushes to branches start a sync."
    return Ignored(repository=None, reason=reason, message=message)


async def _trigger(
    app: Application, repository: Repository, default_branch: str | None, moved: Sequence[_RefChange], asked_by: str
) -> Outcome:
    def ignored(reason: Reason, message: str) -> Ignored:
        return Ignored(repository=repository.name, reason=reason, message=message)

    branch = repository.branch or default_branch
    # If the default branch is unknown, any branch may be it: a check costs one request.
    mine = [change.commit for change in moved if not branch or change.ref == f"{BRANCHES}{branch}"]
    if not mine:
        return ignored(Reason.OTHER_BRANCH, f"The push does not affect branch {branch}.")
    commit = next((commit for commit in mine if commit is not None), None)
    if commit is None:
        deleted = f"Branch {branch or 'of this project'} was deleted; its index stays unchanged."
        return ignored(Reason.BRANCH_DELETED, deleted)
    attempts = app.configuration.registry.daemon.max_attempts
    try:
        ask = Ask(RunTrigger.WEBHOOK, asked_by, max_attempts=attempts)
        asked = await app.runs.enqueue_for_push(repository, commit, ask, is_head=bool(branch))
    except RepositoryNotFound:
        return ignored(Reason.INACTIVE, "It was removed a moment ago.")
    if not isinstance(asked, Repository):
        run, is_new = asked
        log.info("a push requests a run", extra={"repository": run.repository, "run": run.id, "commit": commit})
        return TriggeredRun(repository=run.repository, run_id=run.id, status=run.status, is_new=is_new)
    if asked.is_active:
        return ignored(Reason.ALREADY_INDEXED, "The index holds this commit already.")
    if asked.paused_reason is None:
        return ignored(Reason.INACTIVE, "It is no longer in the registry.")
    return ignored(Reason.PAUSED, f"It is paused: {asked.paused_reason}")
