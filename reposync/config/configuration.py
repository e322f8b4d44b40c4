"""The environment and the registry in force together: all that this process goes by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from reposync.config.references import MissingSecret
from reposync.config.registry import Registry
from reposync.config.services import QdrantConfig
from reposync.config.settings import Settings
from reposync.outgoing import proxy_passwords


@dataclass(frozen=True, slots=True)
class Configuration:
    """`registry`: what the applied registry files say, without `repositories`: each of those is a row."""

    settings: Settings
    registry: Registry

    def secrets(self) -> Iterator[str]:
        """Everything that must never be shown, in no order."""
        settings, registry = self.settings, self.registry
        held = [settings.qdrant_api_key, registry.qdrant.api_key, registry.embedding.api_key]
        held += [token.secret for token in settings.api_tokens]
        for server in registry.gitlab:
            held += [server.token, server.webhook_secret, server.webhook_signing]
        held += [each.password for each in registry.repositories]
        known = (secret for secret in held if secret is not None and not isinstance(secret, MissingSecret))
        yield from (secret.get_secret_value() for secret in known)
        for url in (settings.database_url, settings.redis_url):
            if url and (password := urlsplit(url).password):
                yield unquote(password)
        yield from proxy_passwords()

    @property
    def qdrant(self) -> QdrantConfig:
        """Where the index is: the environment wins over the file."""
        return self.registry.qdrant.with_environment(self.settings.qdrant_url, self.settings.qdrant_api_key)
