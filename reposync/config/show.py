"""The document of `reposync config show`: everything in effect, with all defaults filled in and all secrets masked."""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic import SecretStr

from reposync.config.loading import LoadedRegistry, checked_repository
from reposync.config.registry import Group, Registry, ResolvedRepository
from reposync.config.schedule import NEVER_WORDS, Schedule
from reposync.config.settings import Configuration, Settings

MASK = "***"


def effective_configuration(settings: Settings, loaded: LoadedRegistry) -> dict[str, Any]:
    """Plain values, ready for JSON."""
    registry = loaded.registry
    document = {
        "settings": {
            "config_file": loaded.path,
            "state_dir": settings.state_dir,
            "database_url": without_password(settings.database_url),
            "redis_url": without_password(settings.redis_url) if settings.redis_url else None,
            "api_tokens": [f"{token.role}:{MASK}" for token in settings.api_tokens],
            **settings.model_dump(include={"pod_name", "log_format"}),
        },
        "gitlab": [server.model_dump() for server in registry.gitlab],
        "repositories": [_repository(repository) for repository in registry.resolved()],
        "groups": [_group(registry, group) for group in registry.groups],
        "embedding": registry.embedding.model_dump(),
        "qdrant": Configuration(settings, registry).qdrant.model_dump(),
        "index": registry.index.model_dump(by_alias=True),
        "daemon": registry.daemon.model_dump(),
        "http": registry.http.model_dump(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(document, default=_plain))
    return plain


def without_password(url: str) -> str:
    """`url` with its password masked, also in options."""
    masked = re.sub(r"(://[^:/@]*):.*@", rf"\1:{MASK}@", url)
    return re.sub(r"([?&][^=&]*password[^=&]*=)[^&]*", rf"\1{MASK}", masked, flags=re.IGNORECASE)


def _group(registry: Registry, group: Group) -> dict[str, Any]:
    """With the values that its projects get, apart from the patterns of files, which come from the defaults."""
    project = checked_repository(registry, group.definition("any", "any/any"))
    discover = Schedule.parse(group.discover, group.timezone or registry.defaults.timezone)
    return {
        **group.model_dump(include={"gitlab", "group", "include", "exclude", "archived"}),
        "discover": discover.cron,
        "discovery": discover.words(),
        **_common(project),
    }


def _repository(repository: ResolvedRepository) -> dict[str, Any]:
    before, after = ("name", "location", "branch"), ("include", "exclude", "username", "password")
    return {
        **{key: getattr(repository, key) for key in before},
        **_common(repository),
        **{key: getattr(repository, key) for key in after},
    }


def _common(repository: ResolvedRepository) -> dict[str, Any]:
    schedule = repository.schedule
    keys = ("collection", "chunk_size", "chunk_overlap", "max_file_bytes")
    return {
        "cron_expression": schedule.cron if schedule else None,
        "timezone": repository.timezone,
        "schedule": schedule.words() if schedule else NEVER_WORDS,
        **{key: getattr(repository, key) for key in keys},
    }


def _plain(value: object) -> str:
    return MASK if isinstance(value, SecretStr) else str(value)
