"""How `reposync serve` is reached over HTTP, and what it lets people do there."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from reposync.config import fields
from reposync.config.fields import Listing, Maybe, Unfit
from reposync.config.section import Section

_ROOT_PATH = r"(?:/[A-Za-z0-9._~-]+)*"
_HOST = r"(?:\*\.)?[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?|\[[0-9A-Fa-f:.]+\]"


def root_path(value: str) -> str:
    """Without the slash at its end; empty for the top. Raises Unfit."""
    path = value.rstrip("/")
    if not re.fullmatch(_ROOT_PATH, path) or any(part in (".", "..") for part in path.split("/")):
        raise Unfit("must be a path such as /reposync: letters (a-z), digits and . _ ~ - between its slashes")
    return path


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        raise Unfit("must be text")
    return str(value)


def _network(value: str) -> str:
    try:
        return str(ipaddress.ip_network(value, strict=False))
    except ValueError:
        raise Unfit("must be an IP address or a network, such as 10.0.0.0/8") from None


def _host(value: str) -> str:
    if not re.fullmatch(_HOST, value):
        raise Unfit("must be a host name without scheme and port, such as reposync.example.com or *.example.com")
    return value.lower()


_NAME = WithJsonSchema({"type": "string", "minLength": 1})
_TEXT = BeforeValidator(_text)
RootPath = Annotated[str, _TEXT, AfterValidator(root_path), WithJsonSchema({"type": "string"})]
Network = Annotated[str, _TEXT, AfterValidator(_network), _NAME]
HostName = Annotated[str, _TEXT, AfterValidator(_host), _NAME]


class HttpConfig(Section):
    """`allow_local_sources` takes effect without a restart, everything else when the daemon starts again."""

    allow_local_sources: fields.Flag = Field(
        False,
        description="Whether folders of this machine, and addresses that are not of the public internet, may be "
        "registered over HTTP.",
    )
    root_path: RootPath = Field(
        "", description="The path under which a proxy shows it, such as /reposync, taken off by the proxy or not."
    )
    trusted_proxies: Listing[Network] = Field(
        (), description="Addresses and networks whose X-Forwarded-For, -Proto and -Host are believed."
    )
    allowed_hosts: Listing[HostName] = Field(
        (), description="Names it may be asked under; where none are given: any with a token, loopback without."
    )
    secure_cookies: Maybe[fields.Flag] = Field(
        None, description="Whether the login's cookie is sent over https alone; null: where the login came over https."
    )
    metrics: fields.Words[Literal["open", "token", "off"]] = Field(
        "open", description="Who may read /metrics: everybody, whoever has a token, nobody."
    )
