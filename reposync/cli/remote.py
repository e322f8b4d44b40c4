"""`--server URL`: a command asks a daemon that is elsewhere, with a token from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from reposync.errors import RepoSyncError, UsageError

TOKEN_VARIABLES = ("REPOSYNC_TOKEN", "GITLAB_TOKEN")
"""The first one that is set counts. Never an option: the arguments of a process are visible to others."""
_MAX_ANSWER_BYTES = 64 * 2**20

server_option = click.option(
    "--server",
    metavar="URL",
    help=f"Ask the daemon at this address, with the token in {' or '.join(TOKEN_VARIABLES)}, in place of this machine.",
)


class ServerUnavailable(RepoSyncError, code="SERVER_UNAVAILABLE", status=503, retryable=True):
    """The daemon at the address of `--server` does not answer."""


class ServerRefused(RepoSyncError, code="SERVER_REFUSED", status=502):
    """The daemon at the address of `--server` refused the request, or it is no daemon of this program."""


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """`url`: without a trailing slash, with the root path of the daemon."""

    url: str
    token: str | None

    @classmethod
    def at(cls, url: str, environ: Mapping[str, str] = os.environ) -> RemoteServer:
        """Raises UsageError for what is no address, or one to which the token would be sent in the clear."""
        from urllib.parse import urlsplit

        from reposync.config.fields import InvalidValue, base_url
        from reposync.outgoing import is_loopback

        try:
            address = base_url(url)
        except InvalidValue as error:
            raise UsageError(f"--server {error}.") from None
        token = next((environ[name].strip() for name in TOKEN_VARIABLES if environ.get(name, "").strip()), None)
        split = urlsplit(address)
        if token is not None and split.scheme != "https" and not is_loopback(split.hostname or ""):
            raise UsageError(
                "--server must start with https://: the token would be sent in the clear.",
                remedy=f"Without {' and '.join(TOKEN_VARIABLES)} in the environment, no token is sent.",
            )
        return cls(address, token)

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_seconds: float
    ) -> bytes:
        """The body of the response. Raises RepoSyncError with the daemon's own error, ServerUnavailable,
        ServerRefused."""
        import asyncio

        return asyncio.run(self._request(method, path, body, timeout_seconds))

    async def _request(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_seconds: float) -> bytes:
        import json

        from reposync.cli.running_daemon import error_in
        from reposync.http_client import ErrorKinds, HttpClient, HttpRefused, TransientFailure
        from reposync.operations.paths import COMMAND_HEADER
        from reposync.outgoing import OtherServer, Timeouts

        errors = ErrorKinds(ServerRefused, ServerUnavailable, ServerRefused)
        client = HttpClient(self.url, errors, timeouts=Timeouts(read_seconds=timeout_seconds))
        # Without a key: errors then say no next steps in the words of HTTP.
        headers = {"Accept": "application/json", COMMAND_HEADER: ""}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        content = None if body is None else json.dumps(body).encode()
        try:
            async with client.stream(method, f"{self.url}{path}", headers=headers, content=content) as response:
                return await client.read(response, _MAX_ANSWER_BYTES)
        except (HttpRefused, TransientFailure) as failure:
            error = error_in(failure.status, failure.body) if failure.status is not None else None
            if error is not None:
                error.next_steps = ()  # they are for this machine
                raise error from None
            if isinstance(failure, HttpRefused):
                raise ServerRefused(
                    f"{self.url} answered {failure.status}.", remedy="Check that it is the address of reposync."
                ) from None
            raise ServerUnavailable(f"{self.url} does not answer: {failure.reason}.", remedy="Try again.") from None
        except OtherServer as error:
            raise ServerRefused(error.message, remedy="If that is the right one, name it as --server.") from None
        finally:
            await client.close()
