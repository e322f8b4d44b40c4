"""Sections of the registry file about services and the daemon: `embedding`, `qdrant`, `search`, `index`, `daemon`,
`http`."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field, SecretStr, ValidationInfo, field_validator

from reposync.config import fields, secret_fields
from reposync.config.fields import ConfigModel, InvalidValue, Listing, key

Provider = Literal["static", "local", "onnx", "openai", "tei", "ollama", "none"]
Quantization = Literal["none", "int8", "binary", "turbo"]
Ranking = Literal["code", "plain"]

REQUIRED_KEYS: dict[str, frozenset[str]] = {
    "onnx": frozenset({"path"}),
    "openai": frozenset({"model"}),
    "tei": frozenset({"url"}),
    "ollama": frozenset({"url", "model"}),
}
"""By embedding provider."""
_PROMPT_NAMES = frozenset({"query_prompt_name", "document_prompt_name"})
_INPUT_TYPES = frozenset({"query_input_type", "document_input_type", "query_task", "document_task"})
_SERVER_KEYS = (
    frozenset({"url", "model", "dimensions", "api_key", "ca_file", "timeout_seconds", "attempts"})
    | {"query_prefix", "document_prefix"}
    | _PROMPT_NAMES
    | _INPUT_TYPES
)
MEANINGLESS_KEYS: dict[str, frozenset[str]] = {
    "static": _SERVER_KEYS | {"path", "batch", "concurrency"},
    "local": _SERVER_KEYS | {"path"},
    "onnx": _SERVER_KEYS - {"query_prefix", "document_prefix"},
    "none": _SERVER_KEYS | {"path", "window", "batch", "concurrency"},
    "openai": _PROMPT_NAMES | {"path"},
    "tei": _INPUT_TYPES | {"path"},
    "ollama": _PROMPT_NAMES | _INPUT_TYPES | {"path"},
}
LEASE_SECONDS = 15.0
LONGEST_LEASE_SECONDS = 600.0
LOCK_SECONDS = 1800.0
"""Time to live of a repository's Redis lock, which a watchdog extends while the sync runs."""


_REQUIRED_SCHEMA: dict[str, Any] = {
    "allOf": [
        {
            "if": {"required": ["provider"], "properties": {"provider": {"const": provider}}},
            "then": fields.texts(*sorted(keys)),
        }
        for provider, keys in REQUIRED_KEYS.items()
    ]
}


class EmbeddingConfig(ConfigModel):
    """The source of the dense vectors. If a number is null, the default of the provider applies."""

    model_config = ConfigDict(json_schema_extra=_REQUIRED_SCHEMA)

    provider: fields.Words[Provider] = Field(
        "static",
        description="static: the embedded table of words. local: the embedded transformer, and onnx: a transformer "
        "in `path`, both of the extra `transformer`. openai, tei, ollama: a server. none: sparse search only.",
    )
    url: fields.BaseUrl | None = key(None, "The server; null with openai: api.openai.com.")
    path: fields.LocalPath | None = key(None, "Folder with model.onnx and tokenizer.json, for onnx.")
    model: fields.Text | None = key(None, "Name of the model at the server.")
    dimensions: fields.Dimensions | None = key(None, "Length of a vector; null: ask the server.")
    api_key: secret_fields.EmbeddingKey = key(None, "Sent as Bearer token.")
    ca_file: fields.LocalPath | None = key(None, "PEM file of the authority that signed its certificate.")
    window: fields.WindowChars | None = key(
        None, "Characters that the model reads at once; longer chunks get several vectors."
    )
    query_prefix: fields.Prefix | None = key(
        None, "Stands before each query; null: as the model needs it; empty: nothing."
    )
    document_prefix: fields.Prefix | None = key(
        None, "The same before each text of the index; a change builds a new version."
    )
    query_prompt_name: fields.Text | None = key(None, "`prompt_name` of queries, for tei: a prompt of the model.")
    document_prompt_name: fields.Text | None = key(None, "`prompt_name` of texts of the index, for tei.")
    query_input_type: fields.Text | None = key(None, "`input_type` of queries, for openai: Voyage AI, for example.")
    document_input_type: fields.Text | None = key(None, "`input_type` of texts of the index, for openai.")
    query_task: fields.Text | None = key(None, "`task` of queries, for openai: Jina AI.")
    document_task: fields.Text | None = key(None, "`task` of texts of the index, for openai.")
    batch: fields.Count | None = key(None, "Texts in a request.")
    concurrency: fields.Count | None = key(None, "Concurrent requests.")
    timeout_seconds: fields.Seconds | None = key(None, "Timeout of a request; null: 90. For a search at most 15.")
    attempts: fields.Attempts | None = key(
        None, "Attempts of a request, in `attempts` times `timeout_seconds`; null: 3."
    )

    @field_validator(*sorted(_SERVER_KEYS | {"path", "window", "batch", "concurrency"}))
    @classmethod
    def _fits_provider(cls, value: Any, info: ValidationInfo) -> Any:
        provider, key = info.data.get("provider", ""), info.field_name
        if value is None and key in REQUIRED_KEYS.get(provider, ()):
            raise InvalidValue(f"is required for provider {provider}")
        if value is not None and key in MEANINGLESS_KEYS.get(provider, ()):
            raise InvalidValue(f"has no meaning for provider {provider}")
        if provider == "openai" and key == "api_key" and value is None and info.data.get("url", "") is None:
            problem = "is required for provider openai without the `url` of a different server"
            if not isinstance(info.context, fields.AppliedDocument):
                raise InvalidValue(problem)
            return secret_fields.lacking_secret(info, f"it {problem}, and its variable is empty", {})
        return value


class QdrantConfig(ConfigModel):
    """Where the points are. REPOSYNC_QDRANT_URL and REPOSYNC_QDRANT_API_KEY override `url` and `api_key`."""

    url: fields.BaseUrls | None = key(None, "null: the embedded engine. The nodes of a cluster: separated by commas.")
    api_key: secret_fields.QdrantKey = None
    ca_file: fields.LocalPath | None = key(None, "PEM file of the authority that signed its certificate.")
    timeout_seconds: fields.Seconds = 30.0
    shard_number: fields.Count | None = key(None, "Of a new collection; null: the server decides.")
    replication_factor: fields.Count | None = key(None, "Of a new collection; 3 suits a cluster.")
    write_consistency_factor: fields.Count | None = key(
        None, "Replicas that confirm a write; of all: none may be away."
    )
    quantization: fields.Words[Quantization] = Field(
        "none",
        description="Smaller copies of the vectors of a new collection, in memory: int8 a quarter, turbo (TurboQuant, "
        "4 bits; Qdrant 1.18) an eighth, binary a 32nd. They save memory with `on_disk_vectors`.",
    )
    rescore: fields.Flag = key(True, "With `quantization`: rank what a search finds again by the original vectors.")
    on_disk_vectors: fields.Flag = key(False, "Of a new collection: keep the original vectors on disk, not in memory.")
    on_disk_payload: fields.Flag = key(True, "Keep the text of chunks on disk, not in memory.")

    @field_validator("write_consistency_factor")
    @classmethod
    def _at_most_all_replicas(cls, factor: int | None, info: ValidationInfo) -> int | None:
        replicas = info.data.get("replication_factor", factor) or 1
        if factor is not None and factor > replicas:
            raise InvalidValue(f"must be at most `replication_factor`, which is {replicas}")
        return factor


class SearchConfig(ConfigModel):
    """What is searched, and how results are ordered."""

    ranking: fields.Words[Ranking] = Field(
        "code",
        description="code: by words and meaning, and by what paths and definitions say about the query. plain: by "
        "words and meaning alone.",
    )
    include_inactive: fields.Flag = key(
        False, "Show the code of repositories that have left the registry, until their index is removed."
    )


class IndexConfig(ConfigModel):
    """How a new version of an index replaces the live one. Changes take effect with the next run."""

    keep_retired_seconds: fields.Duration = Field(
        0.0,
        alias="keep_retired",
        description="How long a replaced version of an index is kept before it is deleted: 30m, 24h, 7d, or seconds.",
    )


class DaemonConfig(ConfigModel):
    """How `reposync serve` works. Changes take effect without a restart, except for runs in progress."""

    concurrency: Annotated[int, Field(strict=True, ge=1, le=256), fields.TYPED] = key(4, "Concurrent runs in one pod.")
    misfire_grace_seconds: Annotated[float, Field(strict=True, ge=0, le=86_400), fields.TYPED] = key(
        300.0, "A tick that is noticed later than this is not run; the history reports it."
    )
    max_attempts: fields.Attempts = key(3, "Attempts of a run before it ends as failed.")
    retry_seconds: fields.Seconds = key(
        10.0, "Delay before the second attempt; doubled for each further one, with jitter."
    )
    retry_max_seconds: fields.DaySeconds = key(600.0, "The longest delay between two attempts.")
    lease_seconds: Annotated[float, Field(strict=True, ge=1, le=LONGEST_LEASE_SECONDS), fields.TYPED] = key(
        LEASE_SECONDS,
        "A run whose pod died is taken over after this time; heartbeats are more frequent.",
    )
    lock_watchdog_seconds: Annotated[float, Field(strict=True, ge=0.1, le=LOCK_SECONDS * 0.75), fields.TYPED] | None = (
        key(None, "How often the 30 minutes of a Redis lock are renewed; null: every 10 minutes.")
    )
    fair_share_seconds: fields.DaySeconds = key(300.0, "A run that takes longer lets waiting repositories go first.")
    shutdown_grace_seconds: fields.PauseSeconds = key(
        20.0, "Time that active runs get on SIGTERM before they are handed back."
    )
    history_days: Annotated[float, Field(strict=True, gt=0, le=36_500), fields.TYPED] | None = key(
        90.0, "Runs that ended longer ago are deleted from the execution log; null: never."
    )

    @field_validator("retry_max_seconds")
    @classmethod
    def _at_least_the_first(cls, longest: float, info: ValidationInfo) -> float:
        first = info.data.get("retry_seconds", longest)
        if longest < first:
            raise InvalidValue(f"must be at least `retry_seconds`, which is {first:g}")
        return longest


class AuditConfig(ConfigModel):
    """Which searches and reads are recorded, and for how long. Changes take effect without a restart."""

    enabled: fields.Flag | None = key(None, "Record who searched and read what; null: if `http.access` is gitlab.")
    queries: fields.Flag = key(False, "Also record the words of queries and patterns.")
    keep_days: Annotated[float, Field(strict=True, gt=0, le=36_500), fields.TYPED] | None = key(
        365.0, "Entries of longer ago are deleted; null: never."
    )


def root_path(value: str) -> str:
    """Without the trailing slash; empty for the top. Raises InvalidValue."""
    path = value.rstrip("/")
    if not re.fullmatch(r"(?:/[A-Za-z0-9._~-]+)*", path) or any(part in (".", "..") for part in path.split("/")):
        raise InvalidValue("must be a path such as /reposync: letters (a-z), digits and . _ ~ - between its slashes")
    return path


def _network(value: str) -> str:
    try:
        return str(ipaddress.ip_network(value, strict=False))
    except ValueError:
        raise InvalidValue("must be an IP address or a network, such as 10.0.0.0/8") from None


RootPath = Annotated[fields.AnyText, AfterValidator(root_path)]
Network = Annotated[fields.AnyText, AfterValidator(_network)]
_HOST = r"(?:\*\.)?[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?|\[[0-9A-Fa-f:.]+\]"
HostName = Annotated[
    str,
    *fields.matching(
        _HOST, "must be a host name without scheme and port, such as reposync.example.com or *.example.com"
    ),
    AfterValidator(str.lower),
]


class SignInConfig(ConfigModel):
    """The application that is registered in GitLab for people who sign in: confidential, with the scope read_api."""

    client_id: fields.Text = Field(description="Its application id.")
    client_secret: secret_fields.SignInSecret = key(None, "Its secret.")

    @field_validator("client_secret")
    @classmethod
    def _is_given(cls, secret: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if secret is None and not isinstance(info.context, fields.AppliedDocument):
            raise InvalidValue("is required")
        return secret or secret_fields.lacking_secret(info, "its variable is empty", {})


class ServiceToken(ConfigModel):
    """A token of the HTTP API that sees some of the repositories, also of those that are registered later."""

    name: fields.Name = Field(description="Who uses it; shown in the history.")
    token: secret_fields.ServiceSecret = key(None, "The token: 16 characters or more.")
    role: fields.Words[Literal["read", "operate"]] = key(
        "read", "read: search and read them. operate: also sync, pause and cancel them."
    )
    repositories: Annotated[fields.Globs, Field(min_length=1)] = Field(
        description="Gitignore patterns of their names: `platform/**`, `/handbook`, `!platform/secret`."
    )

    @field_validator("token")
    @classmethod
    def _is_given(cls, secret: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if secret is None and not isinstance(info.context, fields.AppliedDocument):
            raise InvalidValue("is required")
        return secret


def _public_url(value: str) -> str:
    from reposync.outgoing import is_loopback  # imports asyncio and ssl

    split = urlsplit(value)
    if split.scheme != "https" and not is_loopback(split.hostname or ""):
        raise InvalidValue("must start with https://, except on loopback")
    return value


PublicUrl = Annotated[fields.BaseUrl, AfterValidator(_public_url)]


class RightsConfig(ConfigModel):
    """With `access: gitlab`: for how long an answer of GitLab counts."""

    fresh_seconds: Annotated[float, Field(strict=True, gt=0, le=60), fields.TYPED] = key(
        60.0, "Whoever loses a right in GitLab keeps it for this long at most; system hooks make it sooner."
    )
    away_seconds: Annotated[float, Field(strict=True, ge=0, le=3600), fields.TYPED] = key(
        300.0, "While GitLab does not answer, its last answer counts until it is this old."
    )


class HttpConfig(ConfigModel):
    """How `reposync serve` is reached over HTTP. `allow_local_sources` takes effect at once, the rest on restart."""

    access: fields.Words[Literal["tokens", "gitlab"]] = key(
        "tokens",
        "tokens: REPOSYNC_API_TOKEN admits, and a token sees every repository. gitlab: people, their tokens and agents "
        "see what GitLab lets them read.",
    )
    gitlab: fields.Name | None = key(None, "With `access: gitlab`: the server in `gitlab` whose people these are.")
    rights: fields.OrDefaults[RightsConfig] = RightsConfig()
    public_url: PublicUrl | None = key(
        None, "Its address for browsers and agents, with `root_path`: https://reposync.example.com."
    )
    sign_in: SignInConfig | None = key(
        None, "With `access: gitlab`: let people sign in at GitLab, and agents on their behalf."
    )

    tokens: Listing[ServiceToken] = key(
        (), "Tokens for some of the repositories, beside those in REPOSYNC_API_TOKEN, which are for all."
    )
    allow_local_sources: fields.Flag = key(
        False, "Allow folders, and addresses that are not public, to be registered over HTTP."
    )
    root_path: RootPath = Field(
        "", description="Path prefix of a reverse proxy, such as /reposync, whether or not the proxy strips it."
    )
    trusted_proxies: Listing[Network] = key((), "Networks whose X-Forwarded-For, -Proto and -Host headers are trusted.")
    allowed_hosts: Listing[HostName] = key((), "Host names of requests; if empty: any with a token, loopback without.")
    secure_cookies: fields.Flag | None = key(
        None, "Send the cookie over https only; null: if the login came over https."
    )
    searches: fields.Count | None = key(
        None,
        "Searches at a time in one daemon; more of them wait. null: 2 with `embedding.provider: local`, whose model "
        "uses all cores for a query, else 8.",
    )
    log_queries: fields.Flag = key(False, "Log the path and the query of requests, with what is searched for.")
    metrics: fields.Words[Literal["open", "token", "off"]] | None = key(
        None, "Who may read /metrics: everybody, holders of a token, nobody; null: `token` if there are tokens."
    )

    @field_validator("tokens")
    @classmethod
    def _are_different(cls, tokens: tuple[ServiceToken, ...]) -> tuple[ServiceToken, ...]:
        if len({each.name for each in tokens}) < len(tokens):
            raise InvalidValue("must not have the same name twice")
        return tokens

    @field_validator("gitlab")
    @classmethod
    def _belongs_to_access(cls, name: str | None, info: ValidationInfo) -> str | None:
        if (info.data.get("access") == "gitlab") != (name is not None):
            raise InvalidValue("is required with `access: gitlab`, and has no meaning without it")
        return name

    @field_validator("sign_in")
    @classmethod
    def _has_an_address(cls, application: SignInConfig | None, info: ValidationInfo) -> SignInConfig | None:
        if application is not None and info.data.get("access") != "gitlab":
            raise InvalidValue("has no meaning without `access: gitlab`")
        if application is not None and info.data.get("public_url", "") is None:
            raise InvalidValue("needs `public_url`: GitLab and agents lead browsers there")
        return application


class ModelPrefixes(NamedTuple):
    """What a model was trained to find directly before each text; empty: nothing."""

    query: str
    document: str = ""


_INSTRUCTION = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
_PASSAGES = ModelPrefixes("Represent this sentence for searching relevant passages: ")

# docs/choose-an-embedding.md cites their cards. The first pattern found in the name without its folders decides.
_MODELS = (
    ("nomic-embed-text", ModelPrefixes("search_query: ", "search_document: ")),
    ("coderank-?embed|nomic-embed-code", ModelPrefixes("Represent this query for searching relevant code: ")),
    (
        "jina-code-(?:embeddings|0\\.5b|1\\.5b)",
        ModelPrefixes("Find the most relevant code snippet given the following query:\n", "Candidate code snippet:\n"),
    ),
    ("qwen3-embedding", ModelPrefixes(_INSTRUCTION)),
    ("\\be5-.*instruct", ModelPrefixes(f"{_INSTRUCTION} ")),
    ("\\be5-(?:small|base|large)", ModelPrefixes("query: ", "passage: ")),
    ("arctic-embed2|arctic-embed.*v2", ModelPrefixes("query: ")),
    ("arctic-embed", _PASSAGES),
    # bge-m3 needs none, and the Chinese ones have a prefix of their own.
    ("\\bbge-(?:small|base|large)(?!.*zh)", _PASSAGES),
)


def prefixes_of(model: str | None) -> ModelPrefixes | None:
    """The prefixes for a model's name as servers have them: `nomic-embed-text:v1.5`, `org/name`, `/models/name`. None
    for an unknown model, or one that needs none."""
    name = (model or "").lower().replace("_", "-").rstrip("/").rpartition("/")[2]
    return next((known for pattern, known in _MODELS if re.search(pattern, name)), None)
