"""What a page takes for granted: a repository to stand in, the servers that it names, what happened before."""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from tests.docs.chat_server import ChatServer
from tests.docs.newcomer import Newcomer
from tests.docs.pages import Page
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.repositories import Content, GitRepository

TOKEN, ADMIN = "glpat-reader-of-everything", "glpat-maintainer-of-all"
SECRET = "a-secret-that-nobody-guesses"
SIGNING = "whsec_" + base64.b64encode(bytes(range(32))).decode()
FILES: dict[str, Content] = {
    "billing/sessions.py": b"def remove_expired_sessions(sessions, now):\n"
    b"    return [session for session in sessions if session.deadline > now]\n",
    "billing/invoices.py": b"def retry_payment(invoice, attempts=3):\n    return invoice.charge(attempts)\n",
    "README.md": b"# Payments\n\nWhat customers pay, and what happens when they do not.\n",
    "package-lock.json": b"{}\n",
}
# By the names that the pages use.
PROJECTS = ("platform/payments-api", "platform/core/payments", "platform/web", "docs/handbook")


def assumed(text: str) -> dict[str, str]:
    """Values of the variables that a text takes from the environment."""
    return {name: _value(name) for name in re.findall(r"\$\{(\w+)", text)}


def _value(name: str) -> str:
    if "ADMIN" in name:
        return ADMIN
    if "SIGNING" in name:
        return SIGNING
    return TOKEN if "TOKEN" in name or "PASSWORD" in name else SECRET


@contextlib.contextmanager
def newcomer_to(page: Page, folder: Path, programs: Path, request: pytest.FixtureRequest) -> Iterator[Newcomer]:
    """In front of what the page takes for granted."""
    repository = GitRepository.create(folder / "payments.git")
    repository.commit(FILES)
    newcomer = Newcomer(repository.clone(folder / "payments"), repository, programs)
    text = "\n".join(span.text for span in page.words_in_code())
    newcomer.environment |= {"GITLAB_TOKEN": TOKEN, **assumed(text)}
    with contextlib.ExitStack() as servers:
        if page.name in BEFORE or "git.example.com" in text or "gitlab.example.com" in text:
            newcomer.places |= _gitlab(repository, servers)
        newcomer.places |= _databases(text, servers, request, folder) | _chat(text, servers)
        servers.enter_context(newcomer)
        if preparation := BEFORE.get(page.name):
            preparation(newcomer)
        yield newcomer


def _gitlab(repository: GitRepository, servers: contextlib.ExitStack) -> dict[str, str]:
    gitlab = servers.enter_context(GitLabServer())
    gitlab.add_token(TOKEN, scopes=("read_api", "read_repository"))
    gitlab.add_token(ADMIN, scopes=("api",))
    for path in PROJECTS:
        gitlab.add_project(path, repository.path, visibility="public" if path == "docs/handbook" else "private")
    return {
        "https://gitlab.example.com": gitlab.url,
        "https://git.example.com/handbook.git": f"{gitlab.url}/docs/handbook.git",
        "GITLAB_ADMIN_TOKEN=glpat-...": f"GITLAB_ADMIN_TOKEN={ADMIN}",
        "GITLAB_TOKEN=glpat-...": f"GITLAB_TOKEN={TOKEN}",
        "HANDBOOK_TOKEN=glpat-...": f"HANDBOOK_TOKEN={TOKEN}",
    }


def _databases(
    text: str, servers: contextlib.ExitStack, request: pytest.FixtureRequest, folder: Path
) -> dict[str, str]:
    places = {}
    for address in set(re.findall(r"postgresql://[^\s\"'`]+", text)):
        places[address] = request.getfixturevalue("postgresql").empty()
    for address in re.findall(r"rediss?://[^\s\"'`]+", text):
        places[address] = request.getfixturevalue("redis_server").url
    if "https://qdrant.example.com:6333" in text:
        qdrant = servers.enter_context(QdrantServer(folder / "qdrant"))
        places["https://qdrant.example.com:6333"] = qdrant.url
    if found := re.findall(r"https?://(?:tei|embeddings|ollama)[\w.]*:?\d*|http://127\.0\.0\.1:8081", text):
        models = frozenset(re.findall(r"model: ([\w./-]+)", text))
        embeddings = servers.enter_context(EmbeddingServer(other_models=models))
        places |= dict.fromkeys(found, embeddings.url)
    return places


def _chat(text: str, servers: contextlib.ExitStack) -> dict[str, str]:
    address = "https://llm.example.com"
    return {address: servers.enter_context(ChatServer()).url} if address in text else {}


# What a page takes for granted besides -------------------------------------------------------------------------------

SERVER = "gitlab: [{name: main, url: 'https://gitlab.example.com', token: '${GITLAB_TOKEN}'}]\n"


def _entry(name: str, project: str = "platform/payments-api", **more: str) -> str:
    reported = "".join(f", {key}: {value}" for key, value in more.items())
    return f"  - {{name: {name}, gitlab: main, project: {project}{reported}}}\n"


def _registered(newcomer: Newcomer) -> None:
    newcomer.registers(SERVER + "repositories:\n" + _entry("payments-api"))


def _applied(newcomer: Newcomer) -> None:
    _registered(newcomer)
    _does(newcomer, "reposync apply")


def _synced(newcomer: Newcomer) -> None:
    _applied(newcomer)
    _does(newcomer, "reposync sync")


def _developed(newcomer: Newcomer) -> None:
    """With a history that can be asked."""
    _develop(newcomer.repository)
    _synced(newcomer)


def _develop(repository: GitRepository) -> None:
    """Adds two commits that are questions."""
    code = b"def coupons(customer):\n    return [coupon for coupon in customer.coupons if coupon.is_valid]\n"
    repository.commit({"billing/discounts.py": code}, message="Count valid coupons of a customer")
    repository.commit({"billing/discounts.py": code + b"\n# sorted\n"}, message="Sort what customers may use")
    repository.commit({"billing/discounts.py": code + b"\n# newest first\n"}, message="Prefer the newest of several")


def _beside_a_clone(newcomer: Newcomer) -> None:
    """With a clone of what stands for a public repository."""
    _registered(newcomer)
    public = GitRepository.create(newcomer.home.with_name("httpx.git"))
    _develop(public)
    public.clone(newcomer.home / "httpx")


def _served(newcomer: Newcomer) -> None:
    """A daemon with a token, at the address that the page gives it."""
    newcomer.places["https://reposync.example.com"] = newcomer.url
    newcomer.registers(SERVER + "repositories:\n" + _entry("platform/payments-api"))
    _does(newcomer, "export TOKEN=0123456789abcdef0123")
    newcomer.starts_a_daemon('REPOSYNC_API_TOKEN="operate:$TOKEN" reposync serve')


def _behind_a_proxy(newcomer: Newcomer) -> None:
    """The proxy has a test of its own: here its address is the daemon's."""
    newcomer.places["https://tools.example.com/reposync"] = newcomer.url
    _served(newcomer)


def _asked(newcomer: Newcomer) -> None:
    """A synced daemon whose index is on a Qdrant server, with vectors of an embedding server."""
    newcomer.registers(
        "embedding: {provider: openai, url: 'https://embeddings.example.com/v1', model: text-embedding-3-small}\n"
        "qdrant: {url: 'https://qdrant.example.com:6333'}\n"
    )
    _served(newcomer)
    _does(newcomer, f"export COMMIT={newcomer.repository.head()}")
    _does(newcomer, "reposync sync")


def _stuck(newcomer: Newcomer) -> None:
    """One run is blocked, one failed, and one waits for a daemon that executes."""
    newcomer.repository.many(40)
    newcomer.registers(
        SERVER
        + "repositories:\n"
        + _entry("payments-api")
        + _entry("web", "platform/web", branch="gone")
        + _entry("handbook", "docs/handbook")
    )
    _does(newcomer, "reposync apply && reposync sync payments-api")
    newcomer.repository.commit({"README.md": b"# Payments\n", "a.py": b"pass\n", "b.py": b"1\n"}, replace=True)
    for name in ("payments-api", "web"):
        assert newcomer.run(f"reposync sync {name}")[0] == 1
    newcomer.starts_a_daemon("reposync serve --no-workers --no-scheduler")
    response = httpx.post(f"{newcomer.url}/api/v1/repositories/handbook/sync", timeout=PATIENCE_SECONDS)
    assert response.status_code == 202, response.text


def _does(newcomer: Newcomer, line: str) -> None:
    code, printed = newcomer.run(line)
    assert code == 0, f"$ {line}\n{printed}"


BEFORE: Mapping[str, Callable[[Newcomer], None]] = {
    "docs/a-run-is-stuck.md": _stuck,
    "docs/agents.md": _served,
    "docs/ask-from-code.md": _asked,
    "docs/back-up-and-restore.md": _synced,
    "docs/choose-an-embedding.md": _beside_a_clone,
    "docs/costs.md": _applied,
    "docs/evaluate-search.md": _developed,
    "docs/http-api.md": _served,
    "docs/observe.md": _served,
    "docs/read-the-history.md": _synced,
    "docs/run-the-daemon.md": _registered,
    "docs/run-on-a-server.md": _behind_a_proxy,
    "docs/scale-out.md": _registered,
    "docs/webhooks.md": _applied,
}
