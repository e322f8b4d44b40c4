"""What a daemon shows of a repository with canaries: its log, its traces, and all that it answers over HTTP and to
agents. And a git server that quotes canaries, so that they are in errors."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from tests.fixtures.pods import Pod, until

QUOTING = "There is no project"
ACTIVE = ("queued", "running", "retrying")
# A request with these arguments shows what the paths alone do not.
QUERIES: Mapping[str, str] = {
    "/api/v1/search": "?q=setting&limit=100",
    "/api/v1/grep": "?q=.&limit=1000",
    "/api/v1/plan": "?target=canaries&full=true",
    "/api/v1/secrets": "?limit=1000",
    "/api/v1/runs": "?limit=100",
    "/api/v1/repositories/canaries/secrets": "?limit=1000",
    "/api/v1/repositories/canaries/wait": "?commit=0000000&timeout=1",
}


@contextmanager
def quoting_server(answers: Sequence[str]) -> Iterator[str]:
    """Answers each request for `/N.git` with an error that quotes the text number N. Yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number = int(self.path.split("/")[1].partition(".")[0])
            body = f"{QUOTING} {answers[number]}, or it is hidden".encode()
            self.send_response(400)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def shown_by_daemon(
    folder: Path, environment: Mapping[str, str], paths: Sequence[str], others: Sequence[str]
) -> dict[str, str]:
    """By place. `paths`: files of the repository `canaries`; `others`: repositories whose syncs fail."""
    spans: list[Any] = []
    with _traces(spans) as traced, Pod("benchmark", folder, {**environment, **traced}) as pod:
        assert pod.url is not None
        until(lambda: pod.gets("/readyz").status_code == 200, details=pod.log_tail)
        with httpx.Client(base_url=pod.url, timeout=120) as client:
            for name in ("canaries", *others):
                full = {"full": True} if name == "canaries" else {}
                answer = client.post(f"/api/v1/repositories/{name}/sync", json=full)
                assert answer.status_code == 202, answer.text
            until(lambda: not _active(client), timeout_seconds=600, details=pod.log_tail)
            answers = list(_answers(client, paths))
            tools = list(_tools(client, paths))
    return {
        "logs": "\n".join(pod.text),
        **({"traces": repr(spans)} if traced else {}),
        "HTTP": "\n".join(answers),
        "MCP": "\n".join(tools),
    }


@contextmanager
def _traces(spans: list[Any]) -> Iterator[dict[str, str]]:
    """The variables that make a daemon send them; none without the extra `otel`."""
    try:
        from tests.fixtures.trace_receiver import trace_receiver

        with trace_receiver() as receiver:
            yield {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
            spans += receiver.spans
    except ImportError:
        yield {}


def _active(client: httpx.Client) -> bool:
    query = "&".join(f"status={status}" for status in ACTIVE)
    return bool(client.get(f"/api/v1/runs?{query}").json()["items"])


def _answers(client: httpx.Client, paths: Sequence[str]) -> Iterator[str]:
    runs = [run["id"] for run in client.get("/api/v1/runs?limit=100").json()["items"]]
    described = client.get("/openapi.json").json()["paths"]
    wanted = ["/", "/runs", "/workers", "/search?q=setting", "/repositories/canaries", "/metrics", "/readyz"]
    wanted += [f"/runs/{run}" for run in runs]
    wanted += [f"/repositories/canaries?folder={quote(path.rpartition('/')[0])}" for path in paths]
    wanted += [f"/files/canaries/-/{quote(path)}" for path in paths]
    for path, operations in described.items():
        if "get" not in operations:
            continue
        path = path.replace("{name}", "canaries")
        if "{run_id}" in path:
            wanted += [path.replace("{run_id}", run) for run in runs]
        elif "{path}" in path:
            wanted += [path.replace("{path}", quote(each)) for each in paths]
        elif path.endswith("/outline"):
            wanted += [f"{path}?path={quote(each)}" for each in paths]
        else:
            wanted.append(path + QUERIES.get(path, ""))
    for each in wanted:
        yield client.get(each).text


def _tools(client: httpx.Client, paths: Sequence[str]) -> Iterator[str]:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("search_code", {"q": "setting", "limit": 20, "max_tokens": 20_000}),
        ("grep_code", {"q": ".", "limit": 200}),
        ("list_repositories", {}),
        *(("read_code", {"repository": "canaries", "path": path}) for path in paths),
    ]
    for name, arguments in calls:
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
        answer = client.post("/mcp", json=call, headers={"Accept": "application/json, text/event-stream"})
        answer.raise_for_status()
        # Escapes would hide a canary.
        yield json.dumps(answer.json(), ensure_ascii=False) if "json" in answer.headers["content-type"] else answer.text
