"""Blobs and files."""

from __future__ import annotations

import base64
import hashlib

import httpx
import pytest
from gitlab.v4.objects import Project as RemoteProject

from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.repositories import GitRepository
from tests.integration.gitlab_server.conftest import API, FILES, Get


def test_blobs_come_raw_and_as_json(remote: RemoteProject, repository: GitRepository) -> None:
    content = bytes(range(256)) * 10
    repository.commit({"logo.bin": content})
    sha = next(row.sha for row in repository.ls_tree() if row.path == b"logo.bin")

    shown = remote.repository_blob(sha)

    assert remote.repository_raw_blob(sha) == content
    assert isinstance(shown, dict)
    assert (base64.b64decode(shown["content"]), shown["size"], shown["sha"]) == (content, 2560, sha)


def test_what_is_no_blob_is_not_found(get: Get, repository: GitRepository) -> None:
    for name in ("0" * 40, repository.head(), "main", "HEAD:README.md"):
        answer = get(f"{API}/repository/blobs/{name}/raw")
        assert (answer.status_code, answer.json()) == (404, {"message": "404 Blob Not Found"})


def test_a_sixth_large_blob_a_minute_is_refused_as_json_but_not_raw(
    server: GitLabServer, client: httpx.Client, repository: GitRepository
) -> None:
    now = 1_700_000_000.0
    server.clock = lambda: now
    repository.commit({"large": bytes(10 * 1024 * 1024 + 1)})
    sha = next(row.sha for row in repository.ls_tree() if row.path == b"large")

    client.headers["Accept-Encoding"] = "identity"
    statuses = [client.get(f"{API}/repository/blobs/{sha}").status_code for _ in range(6)]
    raw = client.get(f"{API}/repository/blobs/{sha}/raw").status_code
    now += 61
    later = client.get(f"{API}/repository/blobs/{sha}").status_code

    assert (statuses, raw, later) == ([200] * 5 + [429], 200, 200)


def test_a_files_headers_tell_everything_but_its_content(remote: RemoteProject, repository: GitRepository) -> None:
    made = repository.head()
    head = repository.commit({"other": b"1"})
    content = b"#!/bin/sh\n"

    headers = remote.files.head("bin/deploy", ref="main")
    raw = remote.files.raw("bin/deploy", ref="main")

    shown = {name.lower(): value for name, value in headers.items() if name.lower().startswith("x-gitlab-")}
    assert shown == {
        "x-gitlab-blob-id": next(row.sha for row in repository.ls_tree() if row.path == b"bin/deploy"),
        "x-gitlab-commit-id": head,
        "x-gitlab-content-sha256": hashlib.sha256(content).hexdigest(),
        "x-gitlab-encoding": "base64",
        "x-gitlab-file-name": "deploy",
        "x-gitlab-file-path": "bin/deploy",
        "x-gitlab-last-commit-id": made,
        "x-gitlab-ref": "main",
        "x-gitlab-size": "10",
        "x-gitlab-execute-filemode": "true",
    }
    assert raw == content


@pytest.mark.parametrize("path", ["docs/new\nline.md", "docs/100%2F of it.md", "src/deep/er/module.py"])
def test_a_file_is_found_by_its_encoded_path(remote: RemoteProject, path: str) -> None:
    shown = remote.files.get(path, ref="main")

    assert (shown.file_path, shown.decode()) == (path, FILES[path.encode()])


def test_a_file_wants_a_ref_and_says_what_is_missing(get: Get) -> None:
    assert get(f"{API}/repository/files/README.md").json() == {"error": "ref is missing"}
    assert get(f"{API}/repository/files/README.md", ref="no").json() == {"message": "404 Commit Not Found"}
    assert get(f"{API}/repository/files/no", ref="main").json() == {"message": "404 File Not Found"}
    assert get(f"{API}/repository/files/vendor%2Flibrary", ref="main").json() == {"message": "404 File Not Found"}
