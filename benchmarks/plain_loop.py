"""The floor for a first sync: read, split, sparse vectors, upsert of ready-made dense vectors; one after the other, no
manifest, no history, nothing deleted, nothing embedded.

    python -m benchmarks.plain_loop REPOSITORY QDRANT_URL
"""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable

import numpy as np
from langchain_text_splitters import Language, RecursiveCharacterTextSplitter
from qdrant_client import QdrantClient, models

from reposync.embedding.sparse import document_vector

BATCH = 256


def main(repository: str, url: str) -> None:
    client = QdrantClient(url=url, timeout=60, check_compatibility=False)
    client.create_collection(
        "plain",
        vectors_config={"dense": models.VectorParams(size=384, distance=models.Distance.COSINE)},
        sparse_vectors_config={"sparse": models.SparseVectorParams(modifier=models.Modifier.IDF)},
    )
    for field in ("repository_id", "path", "content_hash"):
        client.create_payload_index("plain", f"metadata.{field}", models.PayloadSchemaType.KEYWORD)
    splitter = RecursiveCharacterTextSplitter.from_language(Language.PYTHON, chunk_size=7000, chunk_overlap=1500)
    ready_made = np.random.default_rng(1).random(384).astype(np.float32).tolist()
    points: list[models.PointStruct] = []
    total = 0
    for path, content in read_all(repository):
        for text in splitter.split_text(content.decode("utf-8", "replace")):
            sparse = document_vector(text)
            points.append(
                models.PointStruct(
                    id=str(uuid.uuid4()),
                    vector={
                        "dense": ready_made,
                        "sparse": models.SparseVector(indices=sparse.indices.tolist(), values=sparse.values.tolist()),
                    },
                    payload={"page_content": text, "metadata": {"repository_id": "plain", "path": path}},
                )
            )
            if len(points) == BATCH:
                client.upsert("plain", points)
                total += len(points)
                points = []
    if points:
        client.upsert("plain", points)
    print(total + len(points))


def read_all(
    repository: str, branch: str = "main", is_wanted: Callable[[str], bool] = lambda _: True
) -> list[tuple[str, bytes]]:
    """Every file of the branch with such a path, by the git command."""
    listing = subprocess.run(
        ["git", "-C", repository, "ls-tree", "-r", "-z", branch], check=True, capture_output=True
    ).stdout.split(b"\0")[:-1]
    entries = [(line.partition(b"\t")[2].decode("utf-8", "replace"), line.split()[2]) for line in listing]
    entries = [(path, sha) for path, sha in entries if is_wanted(path)]
    blobs = subprocess.run(
        ["git", "-C", repository, "cat-file", "--batch"],
        input=b"\n".join(sha for _, sha in entries) + b"\n",
        check=True,
        capture_output=True,
    ).stdout
    files, at = [], 0
    for path, _ in entries:
        end = blobs.index(b"\n", at)
        size = int(blobs[at:end].split()[2])
        files.append((path, blobs[end + 1 : end + 1 + size]))
        at = end + 2 + size
    return files


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
