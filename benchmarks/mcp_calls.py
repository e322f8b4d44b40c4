"""What the tools for agents and the search page add to a search, and how fast `reposync mcp` is there.

python -m benchmarks.mcp_calls QUESTION... [--rounds 50]

Uses the state folder of REPOSYNC_STATE_DIR, with something indexed. Starts a daemon, asks each question in turn by `GET
/search` (limit 25, as many hits as `search_code` reads) and by `/mcp`, by `GET /search` (limit 10), there also with the
next two questions as further phrasings, and with facets, and on the search page, there once more. Then it ends the
daemon and starts `reposync mcp` five times. The number of the round is a word of the question: nothing that is
remembered of a question helps the next one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from typing import Any

import httpx

from tests.fixtures.supervised import free_port

HANDSHAKE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "benchmark", "version": "1"},
    },
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def call(question: str, number: int = 1) -> dict[str, Any]:
    params = {"name": "search_code", "arguments": {"q": question}}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def milliseconds(seconds: list[float]) -> str:
    return (
        f"p50 {statistics.median(seconds) * 1_000:.1f} ms, p95 {statistics.quantiles(seconds, n=20)[-1] * 1_000:.1f} ms"
    )


def over_http(questions: list[str], rounds: int) -> None:
    port = free_port()

    def phrasings(asked: str) -> list[str]:
        """The question and the next two."""
        question, _, number = asked.rpartition(" ")
        at = questions.index(question)
        return [f"{(questions * 3)[at + more]} {number}" for more in range(3)]

    command = [sys.executable, "-m", "reposync", "serve", "--port", str(port), "--no-workers", "--no-scheduler"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as daemon:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                _wait(client)
                ways = {
                    "GET /search, 25 hits": lambda q: client.get("/api/v1/search", params={"q": q, "limit": 25}),
                    "/mcp": lambda q: client.post("/mcp", json=call(q)),
                    "GET /search, 10 hits": lambda q: client.get("/api/v1/search", params={"q": q}),
                    "3 phrasings, 10 hits": lambda q: client.get("/api/v1/search", params={"q": phrasings(q)}),
                    "10 hits and facets": lambda q: client.get("/api/v1/search", params={"q": q, "facets": "true"}),
                    "search page": lambda q: client.get("/search", params={"q": q}),
                    "search page, again": lambda q: client.get("/search", params={"q": q}),
                }
                taken: dict[str, list[float]] = {name: [] for name in ways}
                for each in range(rounds + 1):
                    for question, (name, ask) in itertools.product(questions, ways.items()):
                        began = time.perf_counter()
                        answer = ask(f"{question} {each}")
                        assert answer.is_success, answer.text
                        ended = time.perf_counter()
                        assert '"isError":true' not in answer.text, answer.text
                        if each:  # the first round loads the libraries and the model
                            taken[name].append(ended - began)
            for name, seconds in taken.items():
                print(f"{name:22}{milliseconds(seconds)}")
        finally:
            daemon.terminate()


def _wait(client: httpx.Client) -> None:
    for _ in range(600):
        try:
            if client.get("/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit("The daemon does not become ready.")


def cold_start(question: str) -> tuple[float, float]:
    """Seconds to the answer of `initialize`, and to that of the first search."""
    command = [sys.executable, "-m", "reposync", "mcp"]
    began = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        print(json.dumps(HANDSHAKE), file=server.stdin, flush=True)
        server.stdout.readline()
        initialized = time.perf_counter()
        print(json.dumps(INITIALIZED), json.dumps(call(question)), sep="\n", file=server.stdin, flush=True)
        assert '"isError":true' not in server.stdout.readline()
        return initialized - began, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", metavar="QUESTION", nargs="+")
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()
    over_http(options.questions, options.rounds)
    for initialized, searched in [cold_start(options.questions[0]) for _ in range(5)]:
        print(f"reposync mcp: initialize after {initialized:.2f} s, first search after {searched:.2f} s")


if __name__ == "__main__":
    main()
