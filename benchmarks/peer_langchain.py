"""What LangChain's indexing API takes for the same work: its splitter, its record manager, its Qdrant store.

    python -m benchmarks.peer_langchain REPOSITORY QDRANT_URL EMBEDDING_URL

`index(..., cleanup="full")` is the mode that ends with a right index. The record manager is the one in memory, which
forgets everything when the process ends: a floor for LangChain, since one that lasts writes to a database. It is given
the same sparse vectors and the same payload indexes, so that both make the same points.
"""

from __future__ import annotations

import sys

import httpx
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.indexing import InMemoryRecordManager, index
from langchain_qdrant import QdrantVectorStore, RetrievalMode, SparseEmbeddings, SparseVector
from langchain_text_splitters import Language, RecursiveCharacterTextSplitter
from qdrant_client import QdrantClient, models

from benchmarks.plain_loop import BATCH, read_all
from reposync.embedding.sparse import document_vector
from reposync.vectors.collection import PAYLOAD_INDEXES


class ServedEmbeddings(Embeddings):
    """The benchmark's embedding server, in OpenAI's dialect."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=60)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        answer = self._client.post("/v1/embeddings", json={"model": "test/words", "input": texts})
        answer.raise_for_status()
        return [each["embedding"] for each in answer.json()["data"]]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


class CodeTerms(SparseEmbeddings):
    """Our sparse vectors behind LangChain's interface."""

    def embed_documents(self, texts: list[str]) -> list[SparseVector]:
        vectors = [document_vector(text) for text in texts]
        return [SparseVector(indices=each.indices.tolist(), values=each.values.tolist()) for each in vectors]

    def embed_query(self, text: str) -> SparseVector:
        return self.embed_documents([text])[0]


def main(repository: str, qdrant_url: str, embedding_url: str) -> None:
    client = QdrantClient(url=qdrant_url, timeout=60, check_compatibility=False)
    client.create_collection(
        "peer",
        vectors_config={"dense": models.VectorParams(size=384, distance=models.Distance.COSINE)},
        sparse_vectors_config={"sparse": models.SparseVectorParams(modifier=models.Modifier.IDF)},
    )
    for field, schema in PAYLOAD_INDEXES.items():
        client.create_payload_index("peer", field, models.PayloadSchemaType(schema["type"]))
    store = QdrantVectorStore(
        client,
        "peer",
        ServedEmbeddings(embedding_url),
        retrieval_mode=RetrievalMode.HYBRID,
        vector_name="dense",
        sparse_embedding=CodeTerms(),
        sparse_vector_name="sparse",
        validate_collection_config=False,
    )
    manager = InMemoryRecordManager("peer")
    manager.create_schema()
    splitter = RecursiveCharacterTextSplitter.from_language(Language.PYTHON, chunk_size=7000, chunk_overlap=1500)
    documents = [
        Document(content.decode("utf-8", "replace"), metadata={"source": path})
        for path, content in read_all(repository)
    ]
    chunks = splitter.split_documents(documents)
    indexed = index(chunks, manager, store, cleanup="full", source_id_key="source", batch_size=BATCH)
    print(indexed["num_added"])


if __name__ == "__main__":
    main(*sys.argv[1:4])
