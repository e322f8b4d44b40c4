"""How heavy the pages are, as they are and compressed, and how long the daemon takes for them.

    python -m benchmarks.page_weights [--rounds 20]

The pages of `benchmarks.pictures`, of a real daemon. Bytes are those of the body on the wire; times are medians of
whole requests over loopback, the plain and the compressed one in turn. Static files are loaded once for all pages.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import httpx

from benchmarks.measure import machine
from benchmarks.pictures import TOKEN, addresses, api, served
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.gitlab_server import GitLabServer

STATIC = (
    "app.css",
    "home.css",
    "runs.css",
    "search.css",
    "reference.css",
    "code.css",
    "app.js",
    "runs.js",
    "search.js",
    "icon.svg",
)
CODINGS = ("identity", "gzip")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    print(f"{machine()}\n\n| | plain | gzip | plain | gzip |\n|---|---|---|---|---|", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="page-weights") as name,
        EmbeddingServer() as embeddings,
        GitLabServer() as gitlab,
        served(Path(name) / "pages", embeddings, gitlab) as pod,
        api(pod) as client,
        httpx.Client(base_url=str(pod.url), headers={"Accept": "text/html"}, timeout=60) as browser,
    ):
        browser.post("/login", data={"token": TOKEN}, follow_redirects=True).raise_for_status()
        paths = {**addresses(client), **{each: f"/static/{each}" for each in STATIC}}
        for page, path in paths.items():
            answers = [
                [browser.get(path, headers={"Accept-Encoding": each}).raise_for_status() for each in CODINGS]
                for _ in range(rounds)
            ]
            sizes = [f"{each.num_bytes_downloaded / 1000:.1f} kB" for each in answers[0]]
            times = [
                1000 * statistics.median(each.elapsed.total_seconds() for each in column)
                for column in zip(*answers, strict=True)
            ]
            print(f"| {page} | {' | '.join([*sizes, *(f'{each:.1f} ms' for each in times)])} |", flush=True)


if __name__ == "__main__":
    main()
