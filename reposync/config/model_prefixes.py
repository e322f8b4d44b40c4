"""Prefixes that embedding models were trained with, by model name. docs/choose-an-embedding.md cites their cards."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelPrefixes:
    """What stands directly before each text; empty: nothing."""

    query: str
    document: str = ""


_INSTRUCTION = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
_PASSAGES = ModelPrefixes("Represent this sentence for searching relevant passages: ")

# The first pattern that is found in the name without its folders decides.
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
    """Of a name as servers have them: `nomic-embed-text:v1.5`, `org/name`, `/models/name`. None for an unknown model,
    or one that needs none."""
    name = (model or "").lower().replace("_", "-").rstrip("/").rpartition("/")[2]
    return next((known for pattern, known in _MODELS if re.search(pattern, name)), None)
