"""A GitLab test server with one project, and those who ask it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gitlab
import httpx
import pytest
from gitlab.v4.objects import Project as RemoteProject

from tests.fixtures.gitlab_server import Contract, GitLabServer, Project
from tests.fixtures.repositories import Content, Executable, GitRepository, Submodule, Symlink

TOKEN = "glpat-test"
API = "/api/v4/projects/42"
GIT = "/platform/payments-api.git"
REFS = f"{GIT}/info/refs?service=git-upload-pack"
Get = Callable[..., httpx.Response]
FILES: dict[bytes, Content] = {
    b"README.md": b"# Payments\n",
    b"bin/deploy": Executable(b"#!/bin/sh\n"),
    b"docs/latest": Symlink("../README.md"),
    b"docs/new\nline.md": b"newline\n",
    b"docs/100%2F of it.md": b"percent\n",
    b"src/deep/er/module.py": b"x = 1\n",
    b"vendor/library": Submodule("1" * 40),
}


@pytest.fixture
def repository(tmp_path: Path) -> GitRepository:
    repository = GitRepository.create(tmp_path / "payments.git")
    repository.commit(FILES, message="Start\n\nWith a body.")
    return repository


@pytest.fixture
def server(repository: GitRepository) -> Iterator[GitLabServer]:
    """Holds platform/payments-api (id 42); what it answers must fit GitLab's published contract."""
    with GitLabServer(contract=Contract.load()) as server:
        server.add_project("platform/payments-api", repository.path, id=42)
        server.add_token(TOKEN, scopes={"api"})
        yield server
        assert server.contract_errors == []


@pytest.fixture
def project(server: GitLabServer) -> Project:
    """The project as the server keeps it."""
    return server.projects[0]


@pytest.fixture
def client(server: GitLabServer) -> Iterator[httpx.Client]:
    """Asks with the token and shows what is on the wire."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=30, verify=False) as client:
        yield client


@pytest.fixture
def anonymous(server: GitLabServer) -> Iterator[httpx.Client]:
    """Asks with what each request brings along, and nothing else."""
    with httpx.Client(base_url=server.url, timeout=30, verify=False) as client:
        yield client


@pytest.fixture
def get(client: httpx.Client) -> Get:
    """`get(path, name=value)`: a GET with parameters."""

    def ask(path: str, /, **query: Any) -> httpx.Response:
        return client.get(path, params=query or None)

    return ask


@pytest.fixture
def remote(server: GitLabServer) -> Iterator[RemoteProject]:
    """The project as python-gitlab sees it."""
    with gitlab.Gitlab(server.url, private_token=TOKEN, timeout=30) as connection:
        yield connection.projects.get("platform/payments-api")
