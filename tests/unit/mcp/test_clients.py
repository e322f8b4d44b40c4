from __future__ import annotations

import json
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.errors import ConfigError, UsageError
from reposync.mcp.clients import CLIENTS, Server, address, difference, entry_of, read, with_entry, write

COMMAND = Server(command=["/opt/reposync/bin/reposync", "mcp"], settings={"REPOSYNC_STATE_DIR": "/var/lib/reposync"})
TEAM = Server(url="https://sync.example.com/mcp", token_variable="REPOSYNC_TOKEN")
every_client = pytest.mark.parametrize("name", CLIENTS)


def parsed(name: str, text: str) -> dict[str, Any]:
    return tomllib.loads(text) if name == "codex" else json.loads(text)


@every_client
@pytest.mark.parametrize("server", [COMMAND, TEAM], ids=["command", "server"])
def test_a_new_file_has_the_entry(name: str, server: Server) -> None:
    entry = entry_of(name, server)
    assert parsed(name, with_entry(name, "", entry))[CLIENTS[name].key] == {"reposync": entry}


@every_client
def test_a_token_is_referred_to_and_never_there(name: str) -> None:
    written = json.dumps(entry_of(name, TEAM))
    assert "REPOSYNC_TOKEN" in written or "${input:reposync-token}" in written
    command = Server(command=["reposync", "mcp"], secret_variables=["DATABASE_URL"])
    assert "DATABASE_URL" in json.dumps(entry_of(name, command))


def test_a_server_without_tokens_needs_no_header() -> None:
    assert entry_of("claude", Server(url="http://127.0.0.1:8080/mcp")) == {
        "type": "http",
        "url": "http://127.0.0.1:8080/mcp",
    }


@every_client
def test_installing_twice_changes_nothing(name: str) -> None:
    entry = entry_of(name, TEAM)
    once = with_entry(name, "", entry)
    assert with_entry(name, once, entry) == once
    assert difference(name, once, entry) == ""


scalars = st.none() | st.booleans() | st.integers(-(2**31), 2**31) | st.text(max_size=20)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


@given(st.dictionaries(st.text(max_size=10), values, max_size=4), st.dictionaries(st.text(max_size=10), values))
def test_all_other_entries_of_a_json_file_stay(document: dict[str, Any], servers: dict[str, Any]) -> None:
    before = {**document, "mcpServers": servers}
    after = json.loads(with_entry("cursor", json.dumps(before), entry_of("cursor", TEAM)))
    assert after == {**before, "mcpServers": {**servers, "reposync": entry_of("cursor", TEAM)}}


CODEX = """\
# my settings
model = "o9"

[mcp_servers.other]
command = "x" # why

[mcp_servers.reposync]
command = "/old/reposync"

[mcp_servers.reposync.env]
REPOSYNC_STATE_DIR = "/old"

# about the profile
[profiles.fast]
model = "o9-mini"
"""


def test_all_other_lines_of_a_toml_file_stay() -> None:
    after = with_entry("codex", CODEX, entry_of("codex", TEAM))

    for line in ("# my settings", 'command = "x" # why', "# about the profile", "[profiles.fast]"):
        assert line in after.splitlines()
    assert "/old" not in after
    assert tomllib.loads(after)["mcp_servers"] == {"other": {"command": "x"}, "reposync": entry_of("codex", TEAM)}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("vscode", '{"servers": {} // mine\n}'),
        ("cursor", "[]"),
        ("cursor", '{"mcpServers": []}'),
        ("gemini", '{"mcpServers": {}, "mcpServers": {"other": {}}}'),
        ("codex", "model = "),
        ("codex", 'mcp_servers = {reposync = {command = "x"}}'),
        ("codex", 'text = """\n[mcp_servers.reposync]\nmine\n"""'),
    ],
)
def test_a_file_that_cannot_be_changed_without_a_loss_is_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        with_entry(name, text, entry_of(name, TEAM))
    assert refused.value.remedy


def test_the_difference_shows_our_entry_alone_and_no_secret_of_it() -> None:
    before = {"mcpServers": {"reposync": {"url": "https://old", "headers": {"Authorization": "Bearer s3cret"}}}}
    before["mcpServers"]["other"] = {"url": "x", "headers": {"Authorization": "other-s3cret"}}

    shown = difference("cursor", json.dumps(before), entry_of("cursor", TEAM))

    assert '-  "url": "https://old",' in shown
    assert '+  "url": "https://sync.example.com/mcp",' in shown
    assert "s3cret" not in shown


def test_a_file_keeps_its_mode_and_stays_a_link_and_a_new_one_is_private(tmp_path: Path) -> None:
    target, link, new = tmp_path / "dotfiles.json", tmp_path / "mcp.json", tmp_path / "below" / "mcp.json"
    target.write_text("{}")
    target.chmod(0o644)
    link.symlink_to(target)

    write(link, "[1]")
    write(new, "[2]")

    assert (link.is_symlink(), read(target), stat.S_IMODE(target.stat().st_mode)) == (True, "[1]", 0o644)
    assert (read(new), stat.S_IMODE(new.stat().st_mode)) == ("[2]", 0o600)
    assert read(tmp_path / "none.json") == ""
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
