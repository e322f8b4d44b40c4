"""Behind a proxy that alone knows the way, and an authority that no system knows: every client, with real servers."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from reposync.config.settings import Settings
from reposync.errors import ConfigError, RepoSyncError
from reposync.store.database import Database
from tests.fixtures.databases import PostgresqlDatabases
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.folders import quick_folder
from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.network import Authority, ForwardProxy
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.redis_server import RedisServer
from tests.fixtures.repositories import GitRepository
from tests.fixtures.tcp_proxy import TcpProxy
from tests.integration.hardening.conftest import EMBEDDING, GIT, GITLAB, HTTP, QDRANT, REDIS, SECRET, Client

SECONDS = 20.0
NAMES = {GITLAB: "gitlab.internal.test", GIT: "gitlab.internal.test", EMBEDDING: "models.internal.test",
         QDRANT: "qdrant.internal.test"}  # fmt: skip
VARIABLES = (
    "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Company:
    """The ports of its servers by name: in the clear, and behind TLS of its own authority."""

    authority: Authority
    ports: dict[str, dict[str, int]]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"), "*.internal.test", "localhost")


@pytest.fixture(scope="module")
def company(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Company]:
    repository = GitRepository.create(tmp_path_factory.mktemp("git") / "payments.git")
    repository.commit({"a.py": b"1\n"})
    with contextlib.ExitStack() as stack:
        gitlab = stack.enter_context(GitLabServer())
        gitlab.add_token(SECRET, scopes=("read_api", "read_repository"))
        gitlab.add_project("platform/payments-api", repository.path, id=42)
        embedding = stack.enter_context(EmbeddingServer())
        qdrant = stack.enter_context(QdrantServer(stack.enter_context(quick_folder()) / "qdrant"))
        plain = {NAMES[GITLAB]: gitlab.url, NAMES[EMBEDDING]: embedding.url.removesuffix("/v1"),
                 NAMES[QDRANT]: qdrant.url}  # fmt: skip
        context = authority.server_context()
        encrypted = {name: stack.enter_context(TcpProxy(url, tls=context)) for name, url in plain.items()}
        ports = {
            "http": {name: int(url.rpartition(":")[2]) for name, url in plain.items()},
            "https": {name: proxy.port for name, proxy in encrypted.items()},
        }
        yield Company(authority, ports)


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@dataclass(frozen=True, slots=True)
class Road:
    """The way to the company's servers: a proxy that alone knows it."""

    company: Company
    proxy: ForwardProxy
    monkeypatch: pytest.MonkeyPatch

    async def ask(self, client: Client, *, scheme: str = "https", trusted: bool = False, **environ: str) -> None:
        self.proxy.leads = self.company.ports[scheme]
        for name, value in environ.items():
            self.monkeypatch.setenv(name, value)
        # Qdrant's own port is the default for its address.
        port = {"https": ":443", "http": ":80"}[scheme] if client is QDRANT else ""
        await client.ask(f"{scheme}://{NAMES[client]}{port}", self.company.authority.file if trusted else None, SECONDS)


@pytest.fixture
def road(company: Company, monkeypatch: pytest.MonkeyPatch) -> Iterator[Road]:
    with ForwardProxy(password="proxy-hush") as proxy:
        yield Road(company, proxy, monkeypatch)


@pytest.mark.parametrize("client", HTTP, ids=str)
async def test_https_goes_through_the_proxy_and_trusts_the_ca_file(client: Client, road: Road) -> None:
    await road.ask(client, trusted=True, HTTPS_PROXY=road.proxy.url)

    assert set(road.proxy.seen) == {f"CONNECT {NAMES[client]}:443"}


@pytest.mark.parametrize("client", HTTP, ids=str)
async def test_http_goes_through_its_own_proxy(client: Client, road: Road) -> None:
    await road.ask(client, scheme="http", http_proxy=road.proxy.url, HTTPS_PROXY="http://127.0.0.1:1")

    lines = {line.removesuffix(":80") for line in road.proxy.seen}
    assert lines == {f"{line.split()[0]} {NAMES[client]}" for line in lines}


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
@pytest.mark.parametrize("client", HTTP, ids=str)
async def test_every_usual_variable_names_the_authority(client: Client, variable: str, road: Road) -> None:
    await road.ask(client, ALL_PROXY=road.proxy.url, **{variable: str(road.company.authority.file)})


@pytest.mark.parametrize("client", HTTP, ids=str)
async def test_an_authority_that_is_not_configured_is_not_trusted(client: Client, road: Road) -> None:
    with pytest.raises(RepoSyncError, match=r"certificate of .* is not trusted: .*ca_file") as refused:
        await road.ask(client, HTTPS_PROXY=road.proxy.url)
    assert not refused.value.retryable, "it will not be trusted later either"


@pytest.mark.parametrize("client", HTTP, ids=str)
async def test_hosts_in_no_proxy_are_requested_directly(client: Client, road: Road) -> None:
    with pytest.raises(RepoSyncError):  # this machine does not know the name
        await road.ask(client, trusted=True, HTTPS_PROXY=road.proxy.url, NO_PROXY="other.test, .internal.test")
    assert road.proxy.seen == []


@pytest.mark.parametrize("trouble", ["wrong password", "nobody listens"])
@pytest.mark.parametrize("client", HTTP, ids=str)
async def test_an_error_of_the_proxy_does_not_show_its_password(client: Client, trouble: str, road: Road) -> None:
    url = road.proxy.url.replace("proxy-hush", "proxy-rush")
    if trouble == "nobody listens":
        url = "http://worker:proxy-rush@127.0.0.1:1"

    with pytest.raises(RepoSyncError) as refused:
        await road.ask(client, trusted=True, HTTPS_PROXY=url)

    shown = "".join(traceback.format_exception_only(refused.value)) + repr(refused.value.__cause__)
    assert "rush" not in shown
    assert SECRET not in shown
    if trouble == "wrong password":
        assert "407" in str(refused.value)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("HTTPS_PROXY", "socks5://worker:hush@proxy:1080", "SOCKS"),
        ("HTTPS_PROXY", "http://worker:hush@:99999", "not the address of a proxy"),
        ("SSL_CERT_FILE", "/nonexistent/hush.pem", "SSL_CERT_FILE"),
    ],
)
@pytest.mark.parametrize("client", HTTP, ids=str)
async def test_a_variable_that_makes_no_sense_is_a_mistake_in_the_configuration(
    client: Client, variable: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)

    with pytest.raises(ConfigError, match=said) as refused:
        await client.ask("https://gitlab.internal.test", None, SECONDS)
    assert "worker:hush" not in str(refused.value)


async def test_redis_trusts_the_authority_of_the_environment(
    authority: Authority, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TcpProxy(redis_server.url, tls=authority.server_context()) as encrypted:
        address = f"https://localhost:{encrypted.port}"
        with pytest.raises(RepoSyncError, match="certificate"):
            await REDIS.ask(address, None, SECONDS)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        with pytest.raises(RepoSyncError) as answered:
            await REDIS.ask(address, None, SECONDS)
        assert "certificate" not in str(answered.value), "Redis itself has answered, that it wants no password"
        assert SECRET not in str(answered.value)


async def test_postgresql_proves_itself_where_that_is_asked_for(
    authority: Authority, postgresql: PostgresqlDatabases, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # libpq's own place for an authority
    with TcpProxy(postgresql.server_url, tls=authority.server_context()) as encrypted:

        async def opened(mode: str) -> str:
            url = f"{encrypted.url.replace(encrypted.host, 'localhost')}?sslmode={mode}"
            settings = Settings.from_environment({"REPOSYNC_DATABASE_URL": url, "HOME": str(tmp_path)})
            async with await Database.open(settings.database_url) as database:
                return database.where

        with pytest.raises(RepoSyncError):
            await opened("verify-full")
        monkeypatch.setenv("PGSSLROOTCERT", str(authority.file))
        assert await opened("verify-full") == f"postgres on localhost:{encrypted.port}"
        with pytest.raises(RepoSyncError):
            await opened("disable")
        other = authority.file.with_name("other.pem")
        other.write_bytes(authority.certificate.read_bytes())
        monkeypatch.setenv("PGSSLROOTCERT", str(other))
        with pytest.raises(RepoSyncError, match="certificate"):
            await opened("verify-full")
