"""A GitLab with people, and pods where they sign in, over one database."""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import httpx
from pydantic import SecretStr

from reposync.access.changes import RightsChange
from reposync.access.gitlab import GitLabRights, Standing
from reposync.access.gitlab_oauth import GitLabOAuth
from reposync.access.readers import Readers, Wanted
from reposync.api.app import create_app
from reposync.api.auth import Access
from reposync.api.people import People
from reposync.api.server import serve_http
from reposync.app.gitlab_access import CatalogueRights, JobSight, Sight
from reposync.app.sign_in import SignIns
from reposync.config.gitlab_instance import GitLabInstance
from reposync.config.sections import HttpConfig, SignInConfig
from reposync.operations.core import Rule
from reposync.outgoing import RetryPolicy
from reposync.store.database import Database
from reposync.visible import NOTHING
from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.supervised import free_port
from tests.integration.api.serving import parts_of

SERVICE_TOKEN = "operate-secret-of-a-service"


@dataclass(frozen=True)
class Pod:
    """A daemon's HTTP side. All pods of a test have one public address, that of the first, as behind a balancer."""

    url: str
    public_url: str

    def browser(self, **options: Any) -> httpx.AsyncClient:
        """Of one person, with cookies of their own; follows no redirects by itself."""
        return httpx.AsyncClient(
            base_url=self.url, timeout=PATIENCE_SECONDS, headers={"Accept": "text/html"}, **options
        )

    def program(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=PATIENCE_SECONDS)


class NoCatalogue:
    """What people see where nothing is indexed. GitLab is asked each time."""

    def __init__(self, server: GitLabInstance) -> None:
        self.url = server.url
        self._rights = GitLabRights(server, retry=RetryPolicy(attempts=1))
        self._readers = Readers(self._rights, fresh_seconds=0.0, away_seconds=0.0)

    async def sight(self, token: str, *, address: str | None = None) -> Sight:
        return Sight(await self._readers.reader(token, Wanted(frozenset())), NOTHING, NOTHING)

    async def catalogue(self) -> CatalogueRights:
        return CatalogueRights({}, {}, {}, Wanted(frozenset()))

    async def standings(self, token: str, sight: Sight) -> dict[str, Standing]:
        return {}

    async def job_sight(self, token: str) -> JobSight:
        raise NotImplementedError

    async def change(self, change: RightsChange) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        await self._readers.close()
        await self._rights.close()


@contextlib.asynccontextmanager
async def pod(
    gitlab: GitLabServer, database: Database, *, public_url: str | None = None, root: str = "", port: int | None = None
) -> AsyncIterator[Pod]:
    """`public_url`: of a different pod, whose application it shares."""
    port = port or free_port()
    public_url = public_url or f"http://localhost:{port}{root}"
    redirect_uri = f"{public_url}/sign-in/callback"
    application = next(
        (each for each in gitlab.oauth.applications.values() if each.redirect_uri == redirect_uri), None
    ) or gitlab.oauth.add_application(redirect_uri)
    secret = SecretStr(application.secret)
    config = HttpConfig(
        access="gitlab",
        gitlab="main",
        public_url=public_url,
        root_path=root,
        sign_in=SignInConfig(client_id=application.id, client_secret=secret),
    )
    server = GitLabInstance(name="main", url=gitlab.url)
    oauth, readers = GitLabOAuth(server, application.id, secret, redirect_uri), NoCatalogue(server)
    people = People(SignIns(oauth, lambda: database), config, secret, readers)
    access = Access([SERVICE_TOKEN], config, readers=readers, people=people)
    app = create_app(replace(parts_of(access=access)))

    @app.get("/test/me", dependencies=[access.requires(Rule.READ)])
    async def me() -> str:
        return "known"

    @app.get("/test/page", dependencies=[access.page(Rule.READ)])
    async def page() -> str:
        return "shown"

    @app.post("/test/agent", dependencies=[access.agents(Rule.READ)])
    async def agent() -> str:
        return "let in"

    async with serve_http(app, "127.0.0.1", port) as address:
        yield Pod(address.url.replace("127.0.0.1", "localhost") + root, public_url)
    await oauth.close()
    await readers.close()


async def nothing() -> None:
    pass


async def sign_in(
    browser: httpx.AsyncClient, onward: str = "", *, meanwhile: Callable[[], Awaitable[object]] = nothing
) -> httpx.Response:
    """As a person does, whom GitLab knows; the answer of the callback. `meanwhile`: what happens while the browser is
    at GitLab."""
    begun = await browser.get("/sign-in", params={"next": onward} if onward else {})
    assert begun.status_code == 303, begun.text
    await meanwhile()
    async with httpx.AsyncClient() as elsewhere:
        at_gitlab = await elsewhere.get(begun.headers["location"])
    back = httpx.URL(at_gitlab.headers["location"])
    # Behind a balancer, any pod may get it.
    return await browser.get(f"{browser.base_url}".rstrip("/") + back.raw_path.decode().removeprefix(
        browser.base_url.path.rstrip("/")))  # fmt: skip


def shown_secret(page: httpx.Response) -> str:
    """The token that a page shows once."""
    found = re.search(r'<code id="secret">([^<]+)</code>', page.text)
    assert found is not None, page.text
    return html.unescape(found[1])


def fields(page: httpx.Response) -> dict[str, str]:
    """The hidden fields of its form."""
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page.text)
    return {name: html.unescape(value) for name, value in found}
