from __future__ import annotations

import asyncio
from urllib.parse import quote

import httpx
from fastapi import APIRouter, FastAPI
from hypothesis import given
from hypothesis import strategies as st

from reposync.api.routing import RepositoryName, Route, path_of

PREFIX = "/api/v1/repositories/"
PARTS = st.one_of(
    st.sampled_from(["sync", "wait", "index", "rollback", "pause", "repositories", "api", "v1"]),
    st.from_regex(r"[A-Za-z0-9_]{1,5}", fullmatch=True),
)
NAMES = st.lists(PARTS, min_size=1, max_size=4).map("/".join)


def application() -> FastAPI:
    routes = APIRouter(prefix="/api/v1", route_class=Route)

    @routes.get("/repositories/{name:path}")
    async def one(name: RepositoryName) -> list[str]:
        return ["one", name]

    @routes.get("/repositories/{name:path}/wait")
    async def wait(name: RepositoryName) -> list[str]:
        return ["wait", name]

    @routes.post("/repositories/{name:path}/sync")
    async def sync(name: RepositoryName) -> list[str]:
        return ["sync", name]

    @routes.get("/repositories/{name:path}/index")
    async def index(name: RepositoryName) -> list[str]:
        return ["index", name]

    @routes.post("/repositories/{name:path}/index/rollback")
    async def roll_back(name: RepositoryName) -> list[str]:
        return ["rollback", name]

    app = FastAPI()
    app.include_router(routes)
    return app


APPLICATION = application()


def asked(method: str, path: str) -> tuple[int, list[str]]:
    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(APPLICATION), base_url="http://localhost") as client:
            return await client.request(method, PREFIX + path)

    answer = asyncio.run(ask())
    return answer.status_code, answer.json() if answer.status_code == 200 else []


@given(NAMES)
def test_every_repository_can_be_reached_whatever_it_is_called(name: str) -> None:
    for written in (path_of(name), quote(name, safe="")):
        assert asked("GET", written) == (200, ["one", name])
        assert asked("GET", f"{written}/wait") == (200, ["wait", name])
        assert asked("POST", f"{written}/sync") == (200, ["sync", name])
        assert asked("GET", f"{written}/index") == (200, ["index", name])
        assert asked("POST", f"{written}/index/rollback") == (200, ["rollback", name])


@given(NAMES)
def test_a_path_means_the_same_whichever_repositories_there_are(name: str) -> None:
    assert asked("GET", f"{name}/wait") == (200, ["wait", name])
    assert asked("GET", f"{name}/sync")[0] == 405
    assert asked("POST", f"{name}/x%2Fsync")[0] == 405
