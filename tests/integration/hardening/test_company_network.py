"""Behind a proxy that alone knows the way, and an authority that no system knows: every client, with real servers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from reposync.config.settings import Settings
from reposync.errors import ConfigError, RepoSyncError
from reposync.store.database import Database
from tests.fixtures.databases import PostgresqlDatabases
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.folders import quick_folder
from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.network import Authority, EncryptedPostgresql, ForwardProxy
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


class Company:
    """Its servers, in the clear and behind TLS of its own authority."""

    def __init__(self, authority: Authority, plain: dict[str, str], encrypted: dict[str, TcpProxy]) -> None:
        self.authority = authority
        self._plain = plain
        self._encrypted = encrypted

    def leads(self, *, encrypted: bool) -> dict[str, int]:
        if encrypted:
            return {name: proxy.port for name, proxy in self._encrypted.items()}
        return {name: int(url.rpartition(":")[2]) for name, url in self._plain.items()}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority.make(tmp_path_factory.mktemp("authority"), "*.internal.test", "localhost")
    if made is None:
        pytest.skip("this machine has no openssl command")
    return made


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
        yield Company(authority, plain, encrypted)


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
async def proxy() -> AsyncIterator[ForwardProxy]:
    async with ForwardProxy(password="proxy-hush") as proxy:
        yield proxy


@pytest.mark.parametrize("client", HTTP, ids=str)
async def test_https_goes_through_the_proxy_and_trusts_the_ca_file(
    client: Client, company: Company, proxy: ForwardProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.leads = company.leads(encrypted=True)
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    name = NAMES[client]

    # Qdrant's client takes Qdrant's own port where none is given.
    await client.ask(f"https://{name}{':443' if client is QDRANT else ''}", company.authority.file, SECONDS)

    assert set(proxy.seen) == {f"CONNECT {name}:443"}


@pytest.mark.parametrize("client", HTTP, ids=str)
async def test_http_goes_through_its_own_proxy(
    client: Client, company: Company, proxy: ForwardProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.leads = company.leads(encrypted=False)
    monkeypatch.setenv("http_proxy", proxy.url)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    name = NAMES[client]
    port = ":80" if client is QDRANT else ""

    await client.ask(f"http://{name}{port}", None, SECONDS)

    assert {line.removesuffix(":80") for line in proxy.seen} == {f"{line.split()[0]} {name}" for line in proxy.seen}


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
@pytest.mark.parametrize("client", HTTP, ids=str)
async def test_every_usual_variable_names_the_authority(
    client: Client, variable: str, company: Company, proxy: ForwardProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.leads = company.leads(encrypted=True)
    monkeypatch.setenv("ALL_PROXY", proxy.url)
    monkeypatch.setenv(variable, str(company.authority.file))

    await client.ask(f"https://{NAMES[client]}", None, SECONDS)


@pytest.mark.parametrize("client", HTTP, ids=str)
async def test_an_authority_that_nobody_named_is_not_trusted(
    client: Client, company: Company, proxy: ForwardProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.leads = company.leads(encrypted=True)
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)

    with pytest.raises(RepoSyncError, match=r"certificate of .* is not trusted: .*ca_file") as refused:
        await client.ask(f"https://{NAMES[client]}", None, SECONDS)
    assert not refused.value.retryable, "it will not be trusted later either"


@pytest.mark.parametrize("client", HTTP, ids=str)
async def test_what_no_proxy_names_is_asked_for_directly(
    client: Client, company: Company, proxy: ForwardProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.leads = company.leads(encrypted=True)
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    monkeypatch.setenv("NO_PROXY", "other.test, .internal.test")

    with pytest.raises(RepoSyncError):  # this machine does not know the name
        await client.ask(f"https://{NAMES[client]}", company.authority.file, SECONDS)
    assert proxy.seen == []


@pytest.mark.parametrize("trouble", ["wrong password", "nobody listens"])
@pytest.mark.parametrize("client", HTTP, ids=str)
async def test_a_proxy_that_does_not_let_it_through_is_an_error_without_its_password(
    client: Client, trouble: str, company: Company, proxy: ForwardProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.leads = company.leads(encrypted=True)
    url = {
        "wrong password": proxy.url.replace("proxy-hush", "proxy-rush"),
        "nobody listens": "http://worker:proxy-rush@127.0.0.1:1",
    }[trouble]
    monkeypatch.setenv("HTTPS_PROXY", url)

    with pytest.raises(RepoSyncError) as refused:
        await client.ask(f"https://{NAMES[client]}", company.authority.file, SECONDS)

    told = f"{refused.value} {refused.value.__cause__} {refused.value.__cause__ and refused.value.__cause__.__cause__}"
    assert "rush" not in told
    assert SECRET not in told
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
        with pytest.raises(RepoSyncError, match="certificate is not accepted"):
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
    parts = urlsplit(postgresql.server_url)
    folder = parse_qs(parts.query).get("host", [""])[0]
    if not folder.startswith("/"):
        pytest.skip("TEST_DATABASE_URL names a server that is not on a Unix socket")
    async with EncryptedPostgresql(Path(folder) / ".s.PGSQL.5432", authority.server_context()) as encrypted:

        async def opened(mode: str) -> str:
            url = f"postgresql://postgres@localhost:{encrypted.port}/postgres?sslmode={mode}"
            settings = Settings.from_environment({"DATABASE_URL": url, "HOME": str(tmp_path)})
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
