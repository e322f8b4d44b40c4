"""Entries in the configuration of agents."""

from __future__ import annotations

import json
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest

from reposync.errors import ConfigError, UsageError
from reposync.mcp.clients import CLIENTS, address, command_entry, difference, http_entry, with_entry, write

PATHS = {"REPOSYNC_STATE_DIR": "/var/lib/reposync"}
every_client = pytest.mark.parametrize("name", CLIENTS)


def server(name: str) -> dict[str, Any]:
    return http_entry(name, "https://sync.example.com/mcp", "REPOSYNC_TOKEN")


def command(name: str) -> dict[str, Any]:
    return command_entry(name, ["/opt/reposync/bin/reposync", "mcp"], PATHS, ["DATABASE_URL"])


@every_client
@pytest.mark.parametrize(("made", "secret"), [(server, "REPOSYNC_TOKEN"), (command, "DATABASE_URL")])
def test_a_new_file_has_the_entry_which_refers_to_secrets_and_installing_twice_changes_nothing(
    name: str, made: Any, secret: str
) -> None:
    entry = made(name)
    written = with_entry(name, "", entry)

    servers = (tomllib.loads(written) if name == "codex" else json.loads(written))[CLIENTS[name].key]
    assert servers == {"reposync": entry}
    assert secret in written or "${input:reposync-token}" in written
    assert with_entry(name, written, entry) == written


def test_a_server_without_tokens_needs_no_header() -> None:
    url = "http://127.0.0.1:8080/mcp"
    assert http_entry("claude", url, None) == {"type": "http", "url": url}


def test_all_other_entries_of_a_json_file_stay() -> None:
    before = {"theme": "ümlaut", "mcpServers": {"other": {"url": "x"}, "reposync": {"url": "old"}}, "n": [1, None, {}]}
    after = json.loads(with_entry("cursor", json.dumps(before), server("cursor")))
    assert after == {**before, "mcpServers": {"other": {"url": "x"}, "reposync": server("cursor")}}


def test_the_difference_shows_our_entry_alone_and_no_secret_of_it() -> None:
    before: dict[str, Any] = {
        "reposync": {"url": "https://old", "headers": {"Authorization": "Bearer s3cret", "a": "b$"}}
    }
    before["other"] = {"url": "x", "headers": {"Authorization": "other-s3cret"}}

    shown = difference("cursor", json.dumps({"mcpServers": before}), server("cursor"))

    assert '-      "url": "https://old",' in shown
    assert '+      "url": "https://sync.example.com/mcp",' in shown
    assert "s3cret" not in shown and "b$" not in shown and "other" not in shown


@every_client
def test_the_difference_of_a_new_entry_is_the_entry(name: str) -> None:
    shown = difference(name, "", server(name))
    assert [line[1:] for line in shown.splitlines()] == with_entry(name, "", server(name)).splitlines()
    assert {line[0] for line in shown.splitlines()} == {"+"}


def test_all_lines_of_a_toml_file_stay() -> None:
    before = '# mine\n[mcp_servers.other]\ncommand = "x" # why\n'
    after = with_entry("codex", before, command("codex"))

    assert after.startswith(before)
    assert tomllib.loads(after)["mcp_servers"] == {"other": {"command": "x"}, "reposync": command("codex")}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("vscode", '{"servers": {} // mine\n}'),
        ("vscode", '{"inputs": {}}'),
        ("cursor", "[]"),
        ("cursor", '{"mcpServers": []}'),
        ("codex", "model = "),
        ("codex", 'mcp_servers = {other = {command = "x"}}'),
        ("codex", '[mcp_servers.reposync]\ncommand = "/old"'),
    ],
)
def test_a_file_that_cannot_be_changed_without_a_loss_is_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        with_entry(name, text, server(name))
    assert refused.value.remedy


def test_a_file_keeps_its_mode_and_stays_a_link_and_a_new_one_is_private(tmp_path: Path) -> None:
    target, link, new = tmp_path / "dotfiles.json", tmp_path / "mcp.json", tmp_path / "below" / "mcp.json"
    target.write_text("{}")
    target.chmod(0o644)
    link.symlink_to(target)

    write(link, "[1]")
    write(new, "[2]")

    assert (link.is_symlink(), target.read_text(), stat.S_IMODE(target.stat().st_mode)) == (True, "[1]", 0o644)
    assert (new.read_text(), stat.S_IMODE(new.stat().st_mode)) == ("[2]", 0o600)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["below", "dotfiles.json", "mcp.json"]


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
