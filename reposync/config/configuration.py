"""The environment and the registry file together: all that this process was told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from reposync.config.loading import load_registry
from reposync.config.registry import Registry
from reposync.config.services import QdrantConfig
from reposync.config.settings import Settings
from reposync.outgoing import proxy_passwords


@dataclass(frozen=True, slots=True)
class Configuration:
    settings: Settings
    registry: Registry

    @classmethod
    def load(cls, settings: Settings | None = None) -> Configuration:
        """Raises ConfigError, with every problem of the file at once."""
        settings = settings or Settings.from_environment()
        return cls(settings, load_registry(settings.config_path).registry)

    def secrets(self) -> Iterator[str]:
        """Everything that must never be shown, in no order."""
        settings, registry = self.settings, self.registry
        held = [settings.qdrant_api_key, registry.qdrant.api_key, registry.embedding.api_key]
        held += [token.secret for token in settings.api_tokens]
        for server in registry.gitlab:
            held += [server.token, server.webhook_secret, server.webhook_signing]
        held += [each.password for each in registry.repositories]
        yield from (secret.get_secret_value() for secret in held if secret is not None)
        for url in (settings.database_url, settings.redis_url):
            if url and (password := urlsplit(url).password):
                yield unquote(password)
        yield from proxy_passwords()

    @property
    def qdrant(self) -> QdrantConfig:
        """Where the index is: the environment wins over the file."""
        return self.registry.qdrant.with_environment(self.settings.qdrant_url, self.settings.qdrant_api_key)
