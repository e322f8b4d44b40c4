"""What all answers share: compression, links, errors, the log, the published contract."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from gitlab.v4.objects import Project as RemoteProject

from tests.fixtures.gitlab_server import Certificate, Contract, GitLabServer, OtherHost
from tests.fixtures.gitlab_server.answers import json_response
from tests.fixtures.repositories import GitRepository, git_environment
from tests.integration.gitlab_server.conftest import API, TOKEN, Get

ROOT = Path(__file__).resolve().parents[3]


def test_answers_are_compressed_when_asked(
    server: GitLabServer, anonymous: httpx.Client, get: Get, repository: GitRepository
) -> None:
    repository.many(500)

    rows = get(f"{API}/repository/tree", recursive="true", pagination="none").json()
    plain = anonymous.get(
        f"{server.url}{API}", headers={"Accept-Encoding": "identity", "Authorization": f"Bearer {TOKEN}"}
    )

    assert len(rows) > 500
    assert (server.log[0].content_encoding, "content-encoding" in plain.headers) == ("gzip", False)
    assert server.log[0].bytes_out < server.log[0].bytes_out + 1 < 100 * len(rows)


def test_links_lead_to_the_address_that_gitlab_believes_to_have(server: GitLabServer, get: Get) -> None:
    server.external_url = "https://gitlab.example.com"

    link = get(f"{API}/repository/tree", pagination="keyset", per_page=1).links["next"]["url"]

    assert link.startswith("https://gitlab.example.com/api/v4/projects/42/repository/tree?")


def test_the_log_counts_requests_and_keeps_no_secret(
    server: GitLabServer, anonymous: httpx.Client, remote: RemoteProject
) -> None:
    remote.branches.get("main")
    anonymous.get(f"{server.url}/platform/payments-api.git/info/refs?service=git-upload-pack", auth=("x", TOKEN))

    assert [record.service for record in server.log] == ["rest", "rest", "git"]
    assert [record.credential for record in server.log] == ["private-token", "private-token", "basic"]
    assert server.log[0].user_agent.startswith("python-gitlab/")
    assert [record.path for record in server.log.matching("branches/main", method="GET")] == [
        f"{API}/repository/branches/main"
    ]
    assert TOKEN not in repr(list(server.log))
    server.log.forget()
    assert len(server.log) == 0


def test_an_unknown_route_and_method_are_answered_as_grape_does(
    server: GitLabServer, anonymous: httpx.Client, get: Get
) -> None:
    assert get("/api/v4/nonsense").json() == {"error": "404 Not Found"}
    answer = anonymous.delete(f"{server.url}{API}", headers={"Authorization": f"Bearer {TOKEN}"})
    assert (answer.status_code, answer.json()) == (405, {"error": "405 Not Allowed"})


def test_a_crash_of_the_server_fails_the_test_that_met_it(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="crashed"), GitLabServer() as server:
        server.add_project("a/gone", tmp_path / "nowhere.git", id=1, visibility="public")
        assert httpx.get(f"{server.url}/api/v4/projects/1").status_code == 500


def test_the_contract_is_at_hand_and_notices_a_wrong_answer() -> None:
    contract = Contract.load()
    if contract is None:
        pytest.skip("GitLab's OpenAPI file is not beside this checkout (../shared/contracts)")
    good: dict[str, Any] = {"id": "1" * 40, "name": "a", "type": "blob", "path": "a", "mode": "100644"}
    tree = "/api/v4/projects/{id}/repository/tree"

    def errors(body: object, *, path: str = tree, status: int = 200, parameters: tuple[str, ...] = ()) -> list[str]:
        contract.errors.clear()
        contract.check("GET", path, parameters, json_response(body, status=status))
        return list(contract.errors)

    assert errors([good]) == []
    assert "123 is not of type 'string'" in errors([good | {"mode": 123}])[0]
    assert "sha" in errors([good | {"sha": "1"}])[0]
    assert "is not of type 'array'" in errors(good)[0]
    assert "unknown parameter" in errors([good], parameters=("recursiv",))[0]
    assert "status 201" in errors([good], status=201)[0]
    assert "not in the contract" in errors([], path="/api/v4/nonsense")[0]
    commits = "/api/v4/projects/{id}/repository/commits"
    assert "date-time" in errors([{"created_at": "yesterday"}], path=commits)[0]
    assert errors([{"created_at": "2024-01-01T00:00:00.000+00:00"}], path=commits) == []


def test_a_wrong_answer_of_the_running_server_is_collected(repository: GitRepository) -> None:
    contract = Contract.load()
    if contract is None:
        pytest.skip("GitLab's OpenAPI file is not beside this checkout (../shared/contracts)")
    with GitLabServer(contract=contract) as server:
        wrong: Any = 5
        server.add_project("a/b", repository.path, id=1, visibility="public", description=wrong)

        assert httpx.get(f"{server.url}/api/v4/projects/1").status_code == 200
        assert re.search(r"description.*5 is not", server.contract_errors[0])


def test_it_speaks_tls_with_a_certificate_of_its_own(repository: GitRepository, tmp_path: Path) -> None:
    certificate = Certificate.make(tmp_path)
    if certificate is None:
        pytest.skip("the openssl command is not installed")
    with GitLabServer(tls=certificate) as server:
        server.add_project("a/b", repository.path, id=1, visibility="public")
        url = f"{server.url}/api/v4/projects/1"
        trusting = ssl.create_default_context(cafile=certificate.certificate)

        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(url)
        assert httpx.get(url, verify=trusting).json()["web_url"].startswith("https://127.0.0.1:")
        command = [
            "git",
            "-c",
            f"http.sslCAInfo={certificate.certificate}",
            "ls-remote",
            f"{server.url}/a/b.git",
            "HEAD",
        ]
        listed = subprocess.run(command, env=git_environment(), check=True, capture_output=True).stdout.decode()

    assert listed.split() == [repository.head(), "HEAD"]


async def test_it_serves_asynchronous_tests_too(repository: GitRepository) -> None:
    async with GitLabServer() as server, OtherHost() as other, httpx.AsyncClient() as client:
        server.add_project("a/b", repository.path, id=1, visibility="public")
        answers = await asyncio.gather(
            *(client.get(f"{server.url}/api/v4/projects/1/repository/tree?recursive=true") for _ in range(20)),
            client.get(other.url),
        )

    assert {answer.status_code for answer in answers} == {200}
    assert not [thread for thread in threading.enumerate() if thread.name in (server.url, other.url)]


def test_it_starts_by_hand_and_ends_with_ctrl_c() -> None:
    command = [sys.executable, "-m", "tests.fixtures.gitlab_server", "--files", "20"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        token = process.stdout.readline().removeprefix("token: ").strip()
        words = ""
        while "until Ctrl-C" not in words:
            words += process.stdout.readline()
        headers = {"PRIVATE-TOKEN": token}
        tree = httpx.get(f"{url}/api/v4/projects/platform%2Ftools%2Fmany/repository/tree", headers=headers)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)

    assert tree.json()[0]["path"] == "src"
    assert "curl " in words
    assert "git clone " in words
    assert process.returncode == 0
