"""What is in effect, for people and as JSON: everything filled in, every secret masked."""

from __future__ import annotations

import re
from typing import Any

from pydantic import SecretStr

from reposync.config.loading import LoadedRegistry, checked_repository
from reposync.config.registry import Group, Registry, ResolvedRepository
from reposync.config.schedule import NEVER_WORDS, Schedule
from reposync.config.settings import Settings

MASK = "***"


def effective(settings: Settings, loaded: LoadedRegistry) -> dict[str, Any]:
    """Plain values, ready for JSON."""
    registry = loaded.registry
    return {
        "settings": {
            "config_file": str(loaded.path) if loaded.path else None,
            "state_dir": str(settings.state_dir),
            "database_url": without_password(settings.database_url),
            "redis_url": without_password(settings.redis_url) if settings.redis_url else None,
            "api_tokens": [f"{token.role}:{MASK}" for token in settings.api_tokens],
            "pod_name": settings.pod_name,
            "log_format": settings.log_format,
        },
        "gitlab": [_masked(server.model_dump()) for server in registry.gitlab],
        "repositories": [_repository(repository) for repository in registry.resolved()],
        "groups": [_group(registry, group) for group in registry.groups],
        "embedding": _masked(registry.embedding.model_dump()),
        "qdrant": _masked(registry.qdrant.model_dump()),
        "index": _masked(registry.index.model_dump(by_alias=True)),
        "daemon": registry.daemon.model_dump(),
        "http": _masked(registry.http.model_dump()),
    }


def without_password(url: str) -> str:
    """`url` with its user info masked, but for the user's name, and so every option that may be a password."""
    masked = re.sub(r"(://[^:/@]*):.*@", rf"\1:{MASK}@", url)
    return re.sub(r"([?&][^=&]*password[^=&]*=)[^&]*", rf"\1{MASK}", masked, flags=re.IGNORECASE)


def _group(registry: Registry, group: Group) -> dict[str, Any]:
    """With what any of its projects gets; their files are chosen by the defaults' patterns."""
    project = checked_repository(registry, group.definition("any", "any/any"))
    discover = Schedule.parse(group.discover, group.timezone or registry.defaults.timezone)
    return {
        "gitlab": group.gitlab,
        "group": group.group,
        "include": list(group.include),
        "exclude": list(group.exclude),
        "archived": group.archived,
        "discover": discover.cron,
        "discovery": discover.words(),
        **_common(project),
    }


def _repository(repository: ResolvedRepository) -> dict[str, Any]:
    return {
        "name": repository.name,
        "location": repository.location,
        "branch": repository.branch,
        **_common(repository),
        "include": list(repository.include),
        "exclude": list(repository.exclude),
        "username": repository.username,
        "password": MASK if repository.password else None,
    }


def _common(repository: ResolvedRepository) -> dict[str, Any]:
    schedule = repository.schedule
    return {
        "cron_expression": schedule.cron if schedule else None,
        "timezone": repository.timezone,
        "schedule": schedule.words() if schedule else NEVER_WORDS,
        "collection": repository.collection,
        "chunk_size": repository.chunk_size,
        "chunk_overlap": repository.chunk_overlap,
        "max_file_bytes": repository.max_file_bytes,
    }


def _masked(values: dict[str, Any]) -> dict[str, Any]:
    return {key: _plain(value) for key, value in values.items()}


def _plain(value: Any) -> Any:
    match value:
        case SecretStr():
            return MASK
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return str(value)
