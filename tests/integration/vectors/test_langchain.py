"""LangChain's own vector store opens the collection of a sync and searches it: existing RAG code works as it is."""

from collections.abc import Generator

import pytest
from langchain_core.embeddings import Embeddings
from langchain_qdrant import QdrantVectorStore, RetrievalMode
from langchain_qdrant.sparse_embeddings import SparseEmbeddings
from langchain_qdrant.sparse_embeddings import SparseVector as LangChainSparseVector
from qdrant_client import QdrantClient, models

from reposync.embedding.port import EmbeddingSpec
from reposync.vectors.index import QdrantIndex
from tests.fixtures.folders import quick_folder
from tests.fixtures.points import SPEC, WINDOWED, dense, file, scope, sparse
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.qdrant_targets import ENGINE, Target, collections

TEXTS = ["charge the card", "refund the card", "send the invoice"]


class SameVectors(Embeddings):
    """The model of the sync, as LangChain wants it."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return [float(each) for each in dense(text)[0]]


class SameTerms(SparseEmbeddings):
    def embed_documents(self, texts: list[str]) -> list[LangChainSparseVector]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> LangChainSparseVector:
        vector = sparse(text)
        return LangChainSparseVector(indices=vector.indices.tolist(), values=vector.values.tolist())


@pytest.fixture(scope="module")
def server(target: Target) -> Generator[Target, None, None]:
    if target.is_real:
        yield target
        return
    with quick_folder() as folder, QdrantServer(folder / "qdrant") as server:
        yield Target(ENGINE, (server.url,))


@pytest.fixture
def collection(server: Target) -> Generator[str, None, None]:
    with collections(server) as prefix:
        yield f"{prefix} with spaces"


async def synced(server: Target, collection: str, spec: EmbeddingSpec) -> None:
    with quick_folder() as state_dir:
        index = QdrantIndex(server.settings(collection, state_dir))
        await index.ensure(spec)
        await index.replace_files(
            scope(), [file(f"src/{number}.py", text, spec=spec) for number, text in enumerate(TEXTS)]
        )
        await index.close()


@pytest.mark.parametrize("spec", [SPEC, WINDOWED], ids=["one vector", "windows"])
@pytest.mark.parametrize("mode", [RetrievalMode.DENSE, RetrievalMode.SPARSE])
async def test_langchain_searches_the_collection_of_a_sync(
    server: Target, collection: str, mode: RetrievalMode, spec: EmbeddingSpec
) -> None:
    await synced(server, collection, spec)
    client = QdrantClient(url=server.url, check_compatibility=False)
    store = QdrantVectorStore(
        client=client,
        collection_name=collection,
        embedding=SameVectors(),
        sparse_embedding=SameTerms(),
        retrieval_mode=mode,
        vector_name="dense",
        sparse_vector_name="sparse",
    )
    (document, score), *_ = store.similarity_search_with_score("refund the card", k=2)
    assert document.page_content == "refund the card"
    assert score > 0
    assert document.metadata["path"] == "src/1.py"
    assert (document.metadata["start_line"], document.metadata["end_line"]) == (1, 10)
    only = models.Filter(must=[models.FieldCondition(key="metadata.path", match=models.MatchValue(value="src/2.py"))])
    found = store.similarity_search("refund the card", k=5, filter=only)
    assert {each.metadata["path"] for each in found} <= {"src/2.py"}
    client.close()
