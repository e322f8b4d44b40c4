"""The embedding model and the vector database, as the registry describes them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from reposync.config import fields
from reposync.config.fields import Maybe, Unfit
from reposync.config.section import Section

Provider = Literal["local", "openai", "tei", "ollama", "none"]
Quantization = Literal["none", "int8"]

NEEDED: dict[str, frozenset[str]] = {
    "openai": frozenset({"model"}),
    "tei": frozenset({"url"}),
    "ollama": frozenset({"url", "model"}),
}
OF_SERVERS = frozenset({"url", "model", "dimensions", "api_key", "ca_file", "timeout_seconds", "attempts"})
MEANINGLESS: dict[str, frozenset[str]] = {
    "local": OF_SERVERS,
    "none": OF_SERVERS | {"window", "batch", "concurrency"},
}


class EmbeddingConfig(Section):
    """Who makes the dense vectors. Where a number is null, the provider's own default holds."""

    provider: fields.Words[Provider] = Field(
        "local",
        description="local: the embedded model. openai, tei, ollama: a server. none: sparse search alone.",
    )
    url: Maybe[fields.BaseUrl] = Field(None, description="The server; openai without one means api.openai.com.")
    model: Maybe[fields.Text] = Field(None, description="Its name at the server.")
    dimensions: Maybe[fields.Dimensions] = Field(None, description="Length of a vector; the server is asked if null.")
    api_key: Maybe[fields.HeaderSecret] = Field(None, description="Sent as Bearer token.")
    ca_file: Maybe[fields.LocalPath] = Field(None, description="PEM file of the authority that signed its certificate.")
    window: Maybe[fields.WindowChars] = Field(
        None, description="The most characters the model reads at once; longer chunks get several vectors."
    )
    batch: Maybe[fields.Count] = Field(None, description="Texts in a request.")
    concurrency: Maybe[fields.Count] = Field(None, description="Requests at a time.")
    timeout_seconds: Maybe[fields.Seconds] = Field(
        None, description="How long one request to a server may take, whole; null: 90. For a search at most 15."
    )
    attempts: Maybe[fields.Attempts] = Field(
        None,
        description="How often a request is sent, within `attempts` times `timeout_seconds` in all; null: 3.",
    )

    @field_validator(
        "url",
        "model",
        "dimensions",
        "api_key",
        "ca_file",
        "window",
        "batch",
        "concurrency",
        "timeout_seconds",
        "attempts",
    )
    @classmethod
    def _fits_provider(cls, value: Any, info: ValidationInfo) -> Any:
        provider, key = info.data.get("provider", ""), info.field_name
        if value is None and key in NEEDED.get(provider, ()):
            raise Unfit(f"is needed for provider {provider}")
        if value is not None and key in MEANINGLESS.get(provider, ()):
            raise Unfit(f"has no meaning for provider {provider}")
        if provider == "openai" and key == "api_key" and value is None and info.data.get("url", "") is None:
            raise Unfit("is needed for provider openai where no `url` of another server is given")
        return value


class QdrantConfig(Section):
    """Where the points are. The environment's QDRANT_URL and QDRANT_API_KEY win over `url` and `api_key`."""

    url: Maybe[fields.BaseUrl] = Field(None, description="null: the embedded engine in the state folder.")
    api_key: Maybe[fields.HeaderSecret] = None
    ca_file: Maybe[fields.LocalPath] = Field(None, description="PEM file of the authority that signed its certificate.")
    timeout_seconds: fields.Seconds = 30.0
    shard_number: Maybe[fields.Count] = Field(None, description="Of a new collection; null: the server decides.")
    replication_factor: Maybe[fields.Count] = Field(None, description="Of a new collection; 3 suits a cluster.")
    write_consistency_factor: Maybe[fields.Count] = Field(
        None, description="Replicas that confirm a write; at most the replication factor."
    )
    quantization: fields.Words[Quantization] = Field("none", description="int8: a quarter of the memory.")
    on_disk_payload: fields.Flag = Field(True, description="Keep the text of chunks on disk, not in memory.")

    @field_validator("write_consistency_factor")
    @classmethod
    def _confirmable(cls, factor: int | None, info: ValidationInfo) -> int | None:
        replicas = info.data.get("replication_factor", factor) or 1
        if factor is not None and factor > replicas:
            raise Unfit(f"must be at most `replication_factor`, which is {replicas}")
        return factor

    def with_environment(self, url: str | None, api_key: SecretStr | None) -> QdrantConfig:
        """The same with what the environment says in place of what the file says."""
        changes = {"url": url, "api_key": api_key}
        return self.model_copy(update={key: value for key, value in changes.items() if value is not None})
