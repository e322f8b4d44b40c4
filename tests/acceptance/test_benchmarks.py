"""Every benchmark runs, at its smallest size: figures of a program that does not run any more are of a different
program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.repositories import GitRepository

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
SMALLEST: dict[str, str] = {
    "catalogue_reads": "--few 50 --many 51 --rounds 2 --database sqlite",
    "cluster_storm": "--binary {qdrant} --minutes 0.1 --repositories 1",
    "commands": "--files 20",
    "corpus": "{folder}/corpus.git 20 0.1",
    "costs": "--repository {repository} --commits 2",
    "daemon": "--repositories 2 --seconds 1 --requests 1 --database sqlite --schedule={never}",
    "dashboard": "--check",
    "definitions": "--data {folder}/questions --repositories {folder}/repositories",
    "first_sync": "--files 30 --megabytes 0.2",
    "grep": "--files 20 --rounds 1",
    "http": "--seconds 1 --connections 2 --repositories 2 --files 3 --embedding-seconds 0",
    "http.history": "--repositories 3 --history 100 --rounds 1",
    "http.webhooks": "--pushes 3",
    "index_faults": "--every 60 --scenario={first_sync}",
    "index_model": "--minutes 0.01 --examples 1 --steps 3",
    "left_out": "{repository} --sample 1",
    "local_model": "--chunks 1 --rounds 1",
    "local_model_graph": "",
    "mcp_calls": "billing --rounds 2",
    "migrations": "--runs 100 --database sqlite",
    "page_weights": "--rounds 1",
    "pictures": "--only terminal --folder {folder}",
    "reference": "--check",
    "replay": "--repositories {folder}/known --only click --newest --last 2 --state {folder}/state",
    "retrieval": "--chunks 20 --queries 5",
    "retrieval_public": "--only semble --data {folder}/questions --repositories {folder}/repositories",
    "rights": "--worlds 3",
    "secrets": "--canaries 30 --files 20 --megabytes 0.1",
    "settings_change": "--files 20 --megabytes 0.1",
    "sizing": "--files 20 --local-files 1 --at-once 2 --each 10",
    "static_table": "--only attrs,tomlkit,cattrs --output {folder}/table",
    "storm": "--minutes 0.1 --pods 1 --repositories 1 --no-baseline",
    "usages": "--data {folder}/usages.tsv --repositories {repository}/..",
    "vector_layouts": "--windows 50 --cache {folder}/windows",
    "vector_search": "--embedded --chunks 50 --queries 2 --windows 50 --settings none --ef 0 --cache {folder}/vectors",
    "visible": "--repositories 12 --rounds 2",
    "window_reuse": "--repository {repository} --commits 2",
}
PARTS = {
    "http.load": "http",
    "http.waiting": "http",
    "model_server": "reposync eval",
    "peer_langchain": "first_sync",
    "plain_loop": "first_sync",
    "storm.baseline": "storm",
    "storm.stepped_clock": "storm",
}
"""Programs that a benchmark, or a person beside one, starts."""
WORDS = {"never": "no tick", "first_sync": "a first sync"}
QUESTION = {"query": "where are expired sessions removed", "category": "semantic", "secondary": []}


def programs() -> set[str]:
    """Modules below `benchmarks` that are run with `python -m`."""
    folder = ROOT / "benchmarks"
    found = {path for path in folder.rglob("*.py") if '__name__ == "__main__"' in path.read_text()}
    return {".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__main__") for path in found}


def test_each_benchmark_has_a_smallest_size() -> None:
    assert programs() == SMALLEST.keys() | PARTS.keys()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    own = {key: value for key, value in os.environ.items() if not key.startswith(("REPOSYNC_", "TEST_"))}
    return own | {
        "REPOSYNC_STATE_DIR": str(tmp_path / "state"),
        "REPOSYNC_CONFIG": "",
        "REPOSYNC_ENGINE_IDLE_SECONDS": "1",
    }


@pytest.fixture
def repository(tmp_path: Path) -> GitRepository:
    repository = GitRepository.create(tmp_path / "repositories" / "owner" / "billing")
    for number in range(2):
        repository.commit({"sessions.py": f"def remove_expired_billing_sessions():\n    return {number}\n".encode()})
    return repository


@pytest.mark.parametrize("benchmark", SMALLEST)
def test_a_benchmark_runs(
    benchmark: str, tmp_path: Path, environment: dict[str, str], repository: GitRepository
) -> None:
    qdrant = os.environ.get("TEST_QDRANT_BINARY")
    if "{qdrant}" in SMALLEST[benchmark] and not qdrant:
        pytest.skip("TEST_QDRANT_BINARY names no Qdrant server")
    if benchmark == "mcp_calls":
        run("reposync", "sync", str(repository.path), environment=environment)
    if "{folder}/questions" in SMALLEST[benchmark]:
        write_questions(tmp_path / "questions", repository)
    if "{folder}/known" in SMALLEST[benchmark]:
        write_history(tmp_path / "known" / "pallets" / "click")
    if benchmark == "usages":
        write_calls(tmp_path / "usages.tsv", repository)
    values = {"folder": tmp_path, "repository": repository.path, "qdrant": qdrant, **WORDS}
    arguments = [word.format(**values) for word in SMALLEST[benchmark].split()]

    run(f"benchmarks.{benchmark}", *arguments, environment=environment)


def run(module: str, *arguments: str, environment: dict[str, str]) -> str:
    """What it prints."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout + done.stderr


def write_history(folder: Path) -> None:
    repository = GitRepository.create(folder)
    repository.commit({"sessions.py": b"def remove_expired_sessions():\n    return 0\n"}, message="What there was")
    repository.commit({"sessions.py": b"def remove_expired_sessions():\n    return 1\n"}, message="Count what expired")


def write_calls(data: Path, repository: GitRepository) -> None:
    repository.commit({"app.py": b"from sessions import remove_expired_billing_sessions as remove\n\nremove()\n"})
    pinned = f"@billing\thttps://git.example.com/owner/billing.git\t{repository.head()}\n"
    data.write_text(f"{pinned}billing\tremove\tapp.py\t3i\n")


def write_questions(folder: Path, repository: GitRepository) -> None:
    entry = {
        "name": "billing",
        "language": "python",
        "url": "https://git.example.com/owner/billing.git",
        "revision": repository.head(),
        "benchmark_root": None,
    }
    (folder / "annotations").mkdir(parents=True)
    (folder / "repositories.json").write_text(json.dumps([entry]))
    (folder / "annotations" / "billing.json").write_text(json.dumps([QUESTION | {"relevant": ["sessions.py"]}]))
    (folder / "octocode-lines.csv").write_text("query,result1,result2,result3\n")
