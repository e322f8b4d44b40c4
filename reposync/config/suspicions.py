"""What is allowed in a registry but probably not meant, or not wise."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from reposync.config.addresses import split_credentials
from reposync.config.document import Document, Loc
from reposync.config.interpolation import Interpolated, interpolate
from reposync.config.registry import Registry
from reposync.config.schedule import uneven_step

Finding = tuple[Loc, str]
"""The way to a value, and a sentence about it."""

_SECRETS = frozenset({"token", "webhook_secret", "webhook_signing", "api_key", "password"})


def suspicions(document: Document, registry: Registry) -> Iterator[Finding]:
    """Warnings about a registry without errors, each with the way to the value. No value of a secret is in them."""
    for loc, raw in document.texts.items():
        yield from _clear_secret(loc, raw, document.interpolated.get(loc))
    yield from _unencrypted(registry)
    yield from _missing_files(registry)
    yield from _same_source_twice(registry)
    yield from _uneven_schedules(registry)


def _clear_secret(loc: Loc, raw: str, value: Interpolated | None) -> Iterator[Finding]:
    key = loc[-1] if loc else None
    if key == "git":
        if value is None and _has_password(raw):
            yield loc, "credentials stand in the address in the clear; write https://user:${VARIABLE}@..."
        return
    if key not in _SECRETS or not raw:
        return
    if re.fullmatch(r"\$[A-Za-z_][A-Za-z0-9_]*", raw):
        yield loc, f"`{key}` is taken as it stands; for the value of a variable write ${{{raw[1:]}}}"
    elif value is None:
        yield loc, f"`{key}` stands in the clear; write ${{VARIABLE}} and set it in the environment"
    elif not value and value.from_environment:
        yield loc, f"`{key}` is empty, because {raw} is: nothing is sent"
    elif any(part.defaulted and part.text for part in value.parts):
        yield loc, f"the default of `{key}` stands in the clear; leave it out"


def _has_password(url: str) -> bool:
    return split_credentials(interpolate(url, {}))[1] is not None


def _unencrypted(registry: Registry) -> Iterator[Finding]:
    for index, server in enumerate(registry.gitlab):
        if server.token and _is_open(server.url):
            yield ("gitlab", index, "url"), "the token is sent unencrypted over http://"
    for index, repository in enumerate(registry.repositories):
        if repository.git and repository.password and _is_open(repository.git):
            yield ("repositories", index, "git"), "the password is sent unencrypted over http://"


def _is_open(url: str) -> bool:
    split = urlsplit(url)
    return split.scheme == "http" and split.hostname not in ("localhost", "127.0.0.1", "::1")


def _missing_files(registry: Registry) -> Iterator[Finding]:
    for index, server in enumerate(registry.gitlab):
        if server.ca_file and not server.ca_file.is_file():
            yield ("gitlab", index, "ca_file"), "there is no such file on this machine"
    for section, service in (("embedding", registry.embedding), ("qdrant", registry.qdrant)):
        if service.ca_file and not service.ca_file.is_file():
            yield (section, "ca_file"), "there is no such file on this machine"
    for index, repository in enumerate(registry.repositories):
        if repository.path and not Path(repository.path).is_dir():
            yield ("repositories", index, "path"), "there is no such folder on this machine"


def _same_source_twice(registry: Registry) -> Iterator[Finding]:
    seen: dict[tuple[str, str | None, str], str] = {}
    for index, repository in enumerate(registry.resolved()):
        source = (repository.location, repository.branch, repository.collection)
        first = seen.setdefault(source, repository.name)
        if first != repository.name:
            yield ("repositories", index), f"the same source as {first!r}, in the same collection: it is indexed twice"


def _uneven_schedules(registry: Registry) -> Iterator[Finding]:
    written: list[tuple[Loc, str | None]] = [(("defaults", "schedule"), registry.defaults.schedule)]
    written += [
        (("repositories", index, "schedule"), each.schedule) for index, each in enumerate(registry.repositories)
    ]
    for index, group in enumerate(registry.groups):
        written += [(("groups", index, "schedule"), group.schedule), (("groups", index, "discover"), group.discover)]
    for loc, text in written:
        if text and (uneven := uneven_step(text)):
            yield loc, uneven
