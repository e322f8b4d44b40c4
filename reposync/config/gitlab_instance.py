"""A GitLab server as the registry file describes it, with the secrets of its webhooks."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

from pydantic import Field, SecretStr

from reposync.config import fields, secret_fields
from reposync.config.fields import ConfigModel, key

SHORTEST_WEBHOOK_SECRET = 16  # characters
SIGNING_KEY_BYTES = 32


def signing_key(token: str) -> bytes | None:
    """The key inside a signing token of GitLab's webhooks; None if it is not a signing token."""
    prefix, _, encoded = token.partition("_")
    try:
        key = base64.b64decode(encoded, validate=True)
    except binascii.Error:
        return None
    return key if prefix == "whsec" and len(key) == SIGNING_KEY_BYTES else None


# They allow to start syncs, and the endpoint is open to everybody who can reach the server: they must be hard to guess.


def _webhook_problem(text: str) -> str | None:
    if len(text) < SHORTEST_WEBHOOK_SECRET:
        return f"must have at least {SHORTEST_WEBHOOK_SECRET} characters; try `openssl rand -hex 32`"
    return secret_fields.header_problem(text)


def _signing_problem(text: str) -> str | None:
    if signing_key(text) is None:
        return 'must be whsec_ and 32 bytes in base64; try `echo "whsec_$(openssl rand -base64 32)"`'
    return None


_WEBHOOK_SECRET = secret_fields.EnvironmentSecret("GITLAB_WEBHOOK_SECRET", _webhook_problem)
_WEBHOOK_SIGNING = secret_fields.EnvironmentSecret("GITLAB_WEBHOOK_SIGNING", _signing_problem)


class GitLabInstance(ConfigModel):
    """A GitLab server. Without a token only public projects are visible."""

    name: fields.Name = Field(description="The name that repositories and groups use for this server.")
    url: fields.GitLabUrl = Field(description="Its address, without /api/v4.")
    token: secret_fields.Token = key(None, "Access token with read_api and read_repository.")
    ca_file: fields.LocalPath | None = key(None, "PEM file of the authority that signed its certificate.")
    webhook_secret: Annotated[SecretStr | None, _WEBHOOK_SECRET] = key(
        None, "Secret token of its webhooks: at least 16 characters, the same in all."
    )
    webhook_signing: Annotated[SecretStr | None, _WEBHOOK_SIGNING] = key(
        None, "Signing token of its webhooks (GitLab 19.0 and later): whsec_..."
    )
    connect_timeout_seconds: fields.Seconds = 10.0
    read_timeout_seconds: fields.Seconds = 60.0
