"""The environment and the registry file together: all that this process was told."""

from __future__ import annotations

from dataclasses import dataclass

from reposync.config.loading import load_registry
from reposync.config.registry import Registry
from reposync.config.services import QdrantConfig
from reposync.config.settings import Settings


@dataclass(frozen=True, slots=True)
class Configuration:
    settings: Settings
    registry: Registry

    @classmethod
    def load(cls, settings: Settings | None = None) -> Configuration:
        """Raises ConfigError, with every problem of the file at once."""
        settings = settings or Settings.from_environment()
        return cls(settings, load_registry(settings.config_path).registry)

    @property
    def qdrant(self) -> QdrantConfig:
        """Where the index is: the environment wins over the file."""
        return self.registry.qdrant.with_environment(self.settings.qdrant_url, self.settings.qdrant_api_key)
