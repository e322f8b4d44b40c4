"""Whether a GitLab server answers, asked with the cheapest request that it has."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from typing import Any

import gitlab
from pydantic import SecretStr

from reposync.errors import SourceDenied, SourceError
from reposync.sources.addresses import check_way, header_secret, parse_address
from reposync.sources.gitlab_words import Refusal
from reposync.sources.rest import Rest, RestRefused
from reposync.sources.spec import Patience, Timeouts


async def ping_gitlab(
    instance_url: str, *, token: SecretStr | None, ca_file: Path | None = None, timeouts: Timeouts | None = None
) -> None:
    """One request, never repeated. Raises SourceUnavailable, SourceDenied where it refuses the token, SourceError where
    it is no GitLab, ConfigError where address, token or CA file cannot be right."""
    address = parse_address(instance_url, what="GitLab's address")
    check_way(address.url, ca_file)
    secret = header_secret(token or address.password, what=f"The token for {address.url}")
    rest = Rest(
        address.url,
        secret,
        ca_file=ca_file,
        timeouts=timeouts or Timeouts(),
        patience=Patience(attempts=1, max_wait_seconds=0.0),
        observer=None,
    )
    try:
        await rest.call("api_version", _version, doing=f"Asking {address.url} for its version")
    except RestRefused as refused:
        refusal = Refusal.of(refused)
        if refusal.status == HTTPStatus.UNAUTHORIZED and secret is None:
            return  # nobody but its users is told the version
        if refusal.status == HTTPStatus.FORBIDDEN and refusal.error == "insufficient_scope":
            return
        said = f" It says: {refusal.text.rstrip('.')}." if refusal.text else ""
        if refusal.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise SourceDenied(
                f"{address.url} refuses the token.{said}", remedy="Has it expired, or was it revoked?"
            ) from refused
        raise SourceError(
            f"{address.url} answered {refusal.status} when it was asked for its version.{said}",
            remedy="Check that the URL is that of a GitLab instance.",
        ) from refused
    finally:
        await rest.close()


def _version(client: gitlab.Gitlab) -> Any:
    return client.http_get("/version")
