"""The commands that add reposync to the configuration of agents."""

from __future__ import annotations

import json

import pytest

from reposync.errors import UsageError
from reposync.mcp.clients import Server, address, vendor_command

URL = "https://sync.example.com/mcp"
COMMAND = ["/opt/reposync/bin/reposync", "mcp"]
BY_HTTP = Server(URL, secret_variables=["REPOSYNC_TOKEN"])
BY_COMMAND = Server(
    command=COMMAND, settings={"REPOSYNC_STATE_DIR": "/srv"}, secret_variables=["REPOSYNC_DATABASE_URL"]
)


@pytest.mark.parametrize("client", ["claude", "vscode"])
def test_an_entry_as_json_refers_to_secrets_in_the_syntax_of_the_client(client: str) -> None:
    reference = {"claude": "${%s}", "vscode": "${env:%s}"}[client]

    *words, by_http = vendor_command(client, BY_HTTP)
    *_, by_command = vendor_command(client, BY_COMMAND)

    name = {"name": "reposync"} if client == "vscode" else {}
    assert words == {
        "claude": ["claude", "mcp", "add-json", "--scope", "project", "reposync"],
        "vscode": ["code", "--add-mcp"],
    }[client]  # fmt: skip
    headers = {"Authorization": f"Bearer {reference % 'REPOSYNC_TOKEN'}"}
    assert json.loads(by_http) == {**name, "type": "http", "url": URL, "headers": headers}
    env = {"REPOSYNC_STATE_DIR": "/srv", "REPOSYNC_DATABASE_URL": reference % "REPOSYNC_DATABASE_URL"}
    assert json.loads(by_command) == {**name, "type": "stdio", "command": COMMAND[0], "args": ["mcp"], "env": env}


@pytest.mark.parametrize(
    ("client", "server", "options"),
    [
        ("codex", BY_HTTP, f"reposync --url={URL} --bearer-token-env-var=REPOSYNC_TOKEN"),
        ("codex", BY_COMMAND, "reposync --env=REPOSYNC_STATE_DIR=/srv -- /opt/reposync/bin/reposync mcp"),
        (
            "gemini",
            BY_HTTP,
            f"--scope=user --transport=http --header=Authorization:_Bearer_${{REPOSYNC_TOKEN}} reposync {URL}",
        ),
        (
            "gemini",
            BY_COMMAND,
            "--scope=user --transport=stdio --env=REPOSYNC_STATE_DIR=/srv"
            " --env=REPOSYNC_DATABASE_URL=${REPOSYNC_DATABASE_URL} reposync /opt/reposync/bin/reposync mcp",
        ),
    ],
)
def test_options_refer_to_secrets_in_the_syntax_of_the_client(client: str, server: Server, options: str) -> None:
    words = [word.replace("_Bearer_", " Bearer ") for word in options.split()]
    assert vendor_command(client, server) == [client, "mcp", "add", *words]


@pytest.mark.parametrize("client", ["claude", "codex", "gemini", "vscode"])
def test_a_server_without_tokens_needs_no_header(client: str) -> None:
    shown = " ".join(vendor_command(client, Server("http://127.0.0.1:8080/mcp")))
    assert "earer" not in shown


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://sync.example.com", "https://sync.example.com/mcp"),
        ("https://example.com/reposync/", "https://example.com/reposync/mcp"),
        ("http://127.0.0.1:8080/mcp/", "http://127.0.0.1:8080/mcp"),
    ],
)
def test_the_address_of_the_tools_follows_from_that_of_the_server(url: str, expected: str) -> None:
    assert address(url) == expected


@pytest.mark.parametrize(
    "url", ["sync.example.com", "ftp://x", "http://sync.example.com", "https://u:p@x", "https://x?y", "https://[", ""]
)
def test_an_address_that_is_wrong_or_would_show_the_token_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        address(url)
