"""GitLab webhooks: authentication, the pushed branches, and the runs that a push starts.

The run asks GitLab for the head of the branch, so a delivery that arrives twice, late or out of order does no harm.
"""

from __future__ import annotations

import hmac
import logging
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from reposync.app.application import Application
from reposync.config.references import known_text
from reposync.config.registry import GitLabInstance, signing_key
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


def needs_body(servers: Sequence[GitLabInstance], given: Credentials) -> bool:
    """Whether there is a signature to verify; otherwise the headers decide."""
    return bool(given.signature) and any(known_text(server.webhook_signing) for server in servers)


def senders_by_token(servers: Sequence[GitLabInstance], given: Credentials) -> list[GitLabInstance]:
    """The servers that have this secret token, compared in constant time. If the delivery has a signature, servers that
    sign are left out: the signature must be valid then, as GitLab recommends for the transition to signatures."""
    token = given.token.encode("latin-1", "replace")
    secrets = [(each, (known_text(each.webhook_secret) or "").encode()) for each in servers]
    found = [each for each, secret in secrets if hmac.compare_digest(secret, token) and token]
    return [each for each in found if not (given.signature and known_text(each.webhook_signing))]


def senders_by_signature(
    servers: Sequence[GitLabInstance], given: Credentials, body: bytes | bytearray, now: float
) -> list[GitLabInstance]:
    """The servers whose signing token signed `body` (Standard Webhooks: `v1,` and the base64 of HMAC-SHA256 over
    `id.timestamp.body`; several signatures are separated by spaces). `now` in epoch seconds. Raises WebhookRefused for
    a valid signature that is too old or from the future."""
    head = f"{given.message_id}.{given.timestamp}.".encode("latin-1", "replace")
    offered = [each.encode("latin-1", "replace") for each in given.signature.split(" ")[:_MAX_SIGNATURES]]
    found = []
    for server in servers:
        secret = known_text(server.webhook_signing)
        if not secret or (key := signing_key(secret)) is None:
            continue
        made = hmac.new(key, head, sha256)
        made.update(body)
        right = b"v1," + b64encode(made.digest())
        if sum(hmac.compare_digest(right, each) for each in offered):
            found.append(server)
    time = given.timestamp
    is_time = time.isascii() and time.isdigit() and len(time) < 16
    if found and not (is_time and abs(now - float(time)) <= LONGEST_DELAY_SECONDS):
        raise WebhookRefused(
            f"The signature is valid, but not of the last {LONGEST_DELAY_SECONDS:.0f} s.",
            remedy="Check the clocks of both machines; send an old delivery again from GitLab's list of recent events.",
        )
    return found


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


class _RefChange(_Section):
    ref: _Text
    after: _Commit


class PushPayload(_RefChange):
    """The fields of GitLab's push event that are used."""

    project_id: _ProjectId
    project: PushedProject


class _RepositoryUpdate(_Section):
    """Only from system hooks: one event for a push of any number of branches."""

    project_id: _ProjectId
    project: PushedProject
    changes: Annotated[tuple[_RefChange, ...], Field(max_length=MAX_CHANGES)]


class _SystemEvent(_Section):
    event_name: _Text


@dataclass(frozen=True, slots=True)
class Push:
    """Branches after a push: `refs/...` -> commit, None if it was deleted."""

    project_id: int
    path: str
    default_branch: str | None
    web_url: str
    refs: Mapping[str, str | None]


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
            return _push_of(_parsed(PushPayload, body))
        case "repository_update":
            return _push_of(_parsed(_RepositoryUpdate, body))
        case "Tag Push Hook" | "tag_push":
            return Reason.TAG_PUSH
        case _:  # also a renamed or transferred project, which keeps its number
            return Reason.OTHER_EVENT


def _push_of(payload: PushPayload | _RepositoryUpdate) -> Push:
    project = payload.project
    changes = payload.changes if isinstance(payload, _RepositoryUpdate) else [payload]
    return Push(
        payload.project_id,
        project.path_with_namespace.strip("/"),
        project.default_branch or None,
        project.web_url,
        {each.ref: None if each.after in NO_COMMIT else each.after for each in changes},
    )


def _parsed(model: type[M], body: bytes | bytearray) -> M:
    try:
        # 25 MB take 20 ms: unused fields never become Python objects. Nesting over 200 levels is refused.
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise WebhookInvalid(
            f"This is not an event as GitLab sends it: {where}: {first['msg']}.",
            remedy="If the hook has a custom template, remove it.",
        ) from None


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
    if not any(ref.startswith(BRANCHES) for ref in push.refs):
        is_tag = any(ref.startswith(TAGS) for ref in push.refs)
        return [ignored_push(Reason.TAG_PUSH if is_tag else Reason.OTHER_BRANCH)]
    found = await _repositories(app, push, senders)
    if not found:
        message = await _unknown_project(app, push, senders)
        return [Ignored(repository=None, reason=Reason.UNKNOWN_PROJECT, message=message)]
    asked_by = f"push to {push.path}" + (f", delivery {delivery[:_DELIVERY_CHARS]}" if delivery else "")
    return [await _trigger(app, each, push, asked_by) for each in found]


async def _unknown_project(app: Application, push: Push, senders: Sequence[GitLabInstance]) -> str:
    """For a project with an unknown number, which may be one that was created again."""
    for server in senders:
        for row in await app.repositories.find(source="gitlab", location=f"{server.url}/{push.path}"):
            return (
                f"{push.path} is number {push.project_id}, but {row.name} is registered as number {row.project_id}. "
                f"If the project was created again: `reposync repos adopt {row.name}`."
            )
    return f"No registered repository is project {push.path} (number {push.project_id})."


def ignored_push(reason: Reason) -> Ignored:
    """For a delivery without a repository."""
    message = "Tags are not synced." if reason is Reason.TAG_PUSH else "Only pushes to branches start a sync."
    return Ignored(repository=None, reason=reason, message=message)


async def _repositories(app: Application, push: Push, senders: Sequence[GitLabInstance]) -> list[Repository]:
    urls = list(dict.fromkeys(server.url for server in senders))
    # If several servers share a secret, the project's URL in the delivery decides.
    urls = [url for url in urls if push.web_url.lower() == f"{url}/{push.path}".lower()] or urls
    places = {f"{url}/{push.path}{end}".lower() for url in urls for end in ("", ".git")}
    servers = [server.url for server in app.configuration.registry.gitlab]

    def server_of(location: str) -> str | None:
        return max((url for url in servers if location.lower().startswith(f"{url}/".lower())), key=len, default=None)

    # Project numbers are unique on one server only, and one server's URL may start with another's.
    return [
        row for row in await app.repositories.of_project(push.project_id, places) if server_of(row.location) in urls
    ]


async def _trigger(app: Application, repository: Repository, push: Push, asked_by: str) -> Outcome:
    def ignored(reason: Reason, message: str) -> Ignored:
        return Ignored(repository=repository.name, reason=reason, message=message)

    branch = repository.branch or push.default_branch
    # If the default branch is unknown, any branch may be it: a check costs one request.
    moved = {ref: after for ref, after in push.refs.items() if ref.startswith(BRANCHES)}
    mine = {ref: after for ref, after in moved.items() if branch is None or ref == f"{BRANCHES}{branch}"}
    if not mine:
        return ignored(Reason.OTHER_BRANCH, f"The push does not affect branch {branch}.")
    commit = next((after for after in mine.values() if after is not None), None)
    if commit is None:
        deleted = f"Branch {branch or 'of this project'} was deleted; its index stays unchanged."
        return ignored(Reason.BRANCH_DELETED, deleted)
    attempts = app.configuration.registry.daemon.max_attempts
    try:
        ask = Ask(RunTrigger.WEBHOOK, asked_by, max_attempts=attempts)
        asked = await app.runs.enqueue_for_push(repository, commit, ask, is_head=branch is not None)
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
