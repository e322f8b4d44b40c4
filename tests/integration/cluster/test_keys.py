"""A server with API keys: what each kind of key can do, and the sentence for what it cannot."""

import base64
import hashlib
import hmac
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.qdrant_nodes import QdrantNode, qdrant_program
from tests.fixtures.qdrant_targets import SERVER, Target
from tests.fixtures.repositories import GitRepository
from tests.fixtures.world import World

pytestmark = pytest.mark.full

KEY, READ_ONLY = "key-of-the-operator-0123456789abcdef", "key-that-only-reads-0123456789abcdef"
SETTINGS = {
    "QDRANT__SERVICE__API_KEY": KEY,
    "QDRANT__SERVICE__READ_ONLY_API_KEY": READ_ONLY,
    "QDRANT__SERVICE__JWT_RBAC": "true",
}


def token(*access: dict[str, Any]) -> str:
    """A JWT that Qdrant accepts: signed with the API key."""

    def part(content: bytes) -> bytes:
        return base64.urlsafe_b64encode(content).rstrip(b"=")

    head = part(json.dumps({"alg": "HS256", "typ": "JWT"}).encode())
    signed = head + b"." + part(json.dumps({"access": list(access)}).encode())
    return (signed + b"." + part(hmac.digest(KEY.encode(), signed, hashlib.sha256))).decode()


@pytest.fixture(scope="module")
def locked() -> Generator[QdrantNode, None, None]:
    program = qdrant_program()
    assert program is not None
    with QdrantNode(program, settings=SETTINGS) as node:
        yield node


@pytest.fixture
def world(tmp_path: Path, locked: QdrantNode, embeddings: EmbeddingServer, request: pytest.FixtureRequest) -> World:
    repository = GitRepository.create(tmp_path / "project.git")
    repository.commit({"a.py": b"def answer():\n    return 42\n"})
    collection = f"keys-{tmp_path.name}"
    target = Target(SERVER, (locked.url,))
    world = World(tmp_path, repository, embeddings, locked.url, collection, target=target, admin_key=KEY)
    world.configure()
    return world


async def synced(world: World, api_key: str) -> None:
    world.api_key = api_key
    async with world.opened():
        await world.completed()
        assert await world.indexed() == await world.expected()
        assert await world.app.searching.search("answer")


async def refused(world: World, api_key: str) -> str:
    """The sentence."""
    world.api_key = api_key
    async with world.opened():
        run = await world.sync()
    assert (run.status, run.error_code) == ("failed", "INDEX_ERROR")
    assert api_key not in str(run.error_message) or not api_key
    return str(run.error_message)


@pytest.mark.parametrize("api_key", ["", "a-wrong-key", READ_ONLY, token({"collection": "other", "access": "rw"})])
async def test_without_the_right_key_the_sentence_names_the_variable_and_the_access(world: World, api_key: str) -> None:
    sentence = await refused(world, api_key)
    assert "Check REPOSYNC_QDRANT_API_KEY and its permissions" in sentence
    assert "needs a key with manage access" in sentence


async def test_a_key_that_only_reads_searches_what_others_have_synced(world: World) -> None:
    await synced(world, KEY)
    world.api_key = READ_ONLY
    async with world.opened():
        assert await world.app.searching.search("answer")


async def test_a_token_for_the_collection_and_its_alias_syncs_what_is_there(world: World) -> None:
    await synced(world, KEY)
    world.repository.commit({"b.py": b"def later():\n    return 43\n"})
    names = (world.collection, await world.physical())
    await synced(world, token(*({"collection": each, "access": "rw"} for each in names)))
