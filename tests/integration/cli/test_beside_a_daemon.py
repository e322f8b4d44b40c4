"""Commands beside a daemon that does not do what they ask for."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import CallToolResult

from reposync.cli.running_daemon import announced
from reposync.config.settings import Settings
from tests.integration.cli.conftest import Types

KEY = "the key of the commands"
Answers = Callable[..., AbstractContextManager[list[str]]]


@pytest.fixture
def daemon(types: Types) -> Answers:
    """A daemon of the state folder with this answer; yields the paths that it was asked for."""

    @contextmanager
    def answering(status: int, code: str) -> Iterator[list[str]]:
        asked: list[str] = []

        class Daemon(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                assert self.headers["X-Reposync-Command"] == KEY and "Authorization" not in self.headers
                asked.append(self.path.partition("?")[0])
                steps = [{"step": "ShowHistory"}, {"step": "OfANewerProgram", "moon": 1}]
                error = {"code": code, "message": "Said the daemon.", "details": {}, "next": steps}
                body = json.dumps({"error": error}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

            do_PATCH, do_DELETE = do_POST, do_GET  # noqa: N815 - the server calls them

            def log_message(self, *_: Any) -> None: ...

        server = http.server.HTTPServer(("127.0.0.1", 0), Daemon)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://0.0.0.0:{server.server_port}"
        try:
            with announced(Settings.from_environment(), url, key=KEY, has_workers=True):
                yield asked
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    return answering


COMMANDS = (
    ("search", "word"),
    ("grep", "word"),
    ("cat", "app", "a.py"),
    ("history",),
    ("runs", "cancel", "1"),
    ("repos", "add", "app", "--path", "."),
    ("repos", "set", "app", "--branch", ""),
    ("repos", "remove", "app", "--yes"),
    ("index", "status"),
    ("locks", "release", "app"),
    ("verify",),
    ("sync",),
)


@pytest.mark.parametrize("words", COMMANDS)
@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (503, "BUSY", 1),
        (504, "SEARCH_TIMEOUT", 1),
        (500, "INTERNAL_ERROR", 1),
        (404, "REPOSITORY_NOT_FOUND", 3),
        (422, "USAGE", 2),
        (409, "USAGE", 4),
        (422, "NOTHING_INDEXED", 4),
    ],
)
def test_what_a_daemon_refuses_is_not_done_by_the_command(
    daemon: Answers,
    types: Types,
    words: tuple[str, ...],
    status: int,
    code: str,
    exit_code: int,
) -> None:
    with daemon(status, code) as asked:
        ended, out, err = types(*words, "--json")

    assert len(asked) == 1
    assert (ended, json.loads(out)["error"]["code"]) == (exit_code, code)
    assert err == "error: Said the daemon.\n  Next: reposync history\n"


@pytest.mark.parametrize(
    ("status", "code"),
    [(503, "STARTING"), (503, "SHUTTING_DOWN"), (401, "UNAUTHENTICATED"), (404, "NOT_FOUND"), (414, "QUERY_TOO_LONG")],
)
def test_what_a_daemon_cannot_judge_is_done_by_the_command(
    daemon: Answers, types: Types, status: int, code: str
) -> None:
    with daemon(status, code) as asked:
        ended, _, err = types("search", "word")

    assert asked == ["/api/v1/search"]
    assert ended == 4 and "indexed" in err, "what is wrong here: nothing is indexed"


@pytest.mark.parametrize("timeout", [1e308, -1e308, "soon"])
def test_an_agent_with_an_impossible_timeout_gets_a_result(daemon: Answers, timeout: float | str) -> None:
    arguments = {"repository": "app", "sha": "0123456", "timeout": timeout}
    command = StdioServerParameters(command=sys.executable, args=["-m", "reposync", "mcp"], env=dict(os.environ))

    async def asks() -> CallToolResult:
        async with Client(stdio_client(command), mode="legacy") as client:
            return await client.call_tool("wait_for_commit", arguments)

    with daemon(503, "BUSY") as asked:
        result = asyncio.run(asks())

    assert (asked, result.is_error) == (["/mcp"], True)
    assert "Said the daemon." in str(result.content)


def test_the_attempts_that_are_configured_hold_for_commands_too(types: Types, tmp_path: Path) -> None:
    (tmp_path / "repositories.yaml").write_text(
        "daemon: {max_attempts: 7}\nrepositories: [{name: app, path: gone, schedule: never}]\n"
    )
    types("apply")
    run = json.loads(types("sync", "app", "--json")[1])["items"][0]["id"]

    assert attempts(types, "show", run) == 7
    assert attempts(types, "retry", run) == 1 + 7, "one is used"


def attempts(types: Types, *words: str) -> int:
    found = json.loads(types("runs", *words, "--json")[1])["max_attempts"]
    assert isinstance(found, int)
    return found
