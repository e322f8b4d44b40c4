"""Secrets from end to end: how many random canaries are seen anywhere, and what finding them costs.

    python -m benchmarks.secrets [--canaries 1000] [--files 10000] [--megabytes 53]

Canaries of the kinds in `tests/fixtures/canaries.py` are in code of ten languages, notebooks, YAML, `.env`, a
minified line and UTF-16, in paths, in the message of a commit, and in errors that a git server answers. A canary is
seen if its bytes are in what an embedding server gets, in the files of the embedded engine and of the database, which
have the history, or in what commands print and a daemon logs, traces and answers. Then the corpus of
`benchmarks/corpus.py`: CPU time of a first sync with and without looking for secrets, by words only; and of a sync
that applies rules to all that is indexed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from benchmarks.corpus import make_corpus
from benchmarks.measure import machine, measure
from benchmarks.secret_places import QUOTING, quoting_server, shown_by_daemon
from tests.fixtures.canaries import PROVIDERS, value_of
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.repositories import GitRepository

PROGRAM = [sys.executable, "-m", "reposync"]
ZEROS = re.compile(rb"\0{64,}+")
OFF = "{action: off, generic: off}"
SHAPES: Mapping[str, str] = {
    "py": 'def connect():\n    return open_session("""{}""")\n',
    "js": "export const setting = `{}`;\n",
    "ts": "export const setting: string = `{}`;\n",
    "go": "package main\n\nconst setting = `{}`\n",
    "java": 'class Setting {{\n  String value = """\n{}""";\n}}\n',
    "rb": "SETTING = <<~END\n{}\nEND\n",
    "rs": 'const SETTING: &str = r#"{}"#;\n',
    "php": "<?php\n$setting = '{}';\n",
    "sh": "export SETTING='{}'\n",
    "c": 'const char *setting = "{}";\n',
    "yaml": 'setting: "{}"\n',
    "env": "SETTING={}\n",
    "min": "var a=1;function f(b){{return b}};var c='{}';f(c);\n",
    "utf16": "setting: {}\n",
    "ipynb": "setting = '''{}'''\n",
}


class Canary(NamedTuple):
    kind: str
    path: str
    value: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--canaries", type=int, default=1_000)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--megabytes", type=float, default=53.0)
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as name, EmbeddingServer() as embeddings:
        find_canaries(Path(name), embeddings, options.canaries)
    with tempfile.TemporaryDirectory() as name:
        measure_corpus(Path(name), options.files, options.megabytes)


def find_canaries(folder: Path, embeddings: EmbeddingServer, count: int) -> None:
    chance = random.Random(1)
    canaries, files = [], {}
    shapes = [*SHAPES]
    for number in range(count):
        kind, shape = [*PROVIDERS][number % len(PROVIDERS)], shapes[number // len(PROVIDERS) % len(shapes)]
        secret = PROVIDERS[kind](chance)
        path, content = file_of(f"{number}/{shape}", shape, secret)
        canaries.append(Canary(kind, path, value_of(kind, secret)))
        files[path] = content
    for kind, make in PROVIDERS.items():
        if "/" not in (secret := make(chance)) and "\n" not in secret:
            files[f"paths/{secret}.txt"] = b"nothing\n"
            canaries.append(Canary(kind, "path", value_of(kind, secret)))
    told = {kind: [make(chance) for _ in range(2)] for kind, make in PROVIDERS.items()}
    canaries += [Canary(kind, "commit", value_of(kind, secret)) for kind, (secret, _) in told.items()]
    canaries += [Canary(kind, "error", value_of(kind, secret)) for kind, (_, secret) in told.items()]
    repository = GitRepository.create(folder / "canaries.git")
    repository.commit(files, message="\n".join(secret for secret, _ in told.values()))
    with quoting_server([secret for _, secret in told.values()]) as url:
        places = look_everywhere(folder, embeddings, repository.path, canaries, url)
    report(canaries, places)


def look_everywhere(
    folder: Path, embeddings: EmbeddingServer, repository: Path, canaries: Sequence[Canary], refusing: str
) -> dict[str, bytes]:
    """What each place has. `refusing`: a git server that quotes secrets."""
    others = {f"wrong-{number}": f"{refusing}/{number}.git" for number in range(len(PROVIDERS))}
    paths = [each.path for each in canaries if "/" in each.path]
    some = [*paths[:: max(1, len(paths) // 20)], "paths/unknown.txt"]
    model = f'{{provider: openai, url: "{embeddings.url}", model: test/words, dimensions: 64}}'
    environment = configured(folder, repository, model, "{}", others=others)
    printed = [output(["apply"], environment), output(["sync", "canaries"], environment)]
    daemon = shown_by_daemon(folder, environment, some, list(others))
    for words in (["search", "--json", "setting", "--limit", "100"], ["history", "--json"], ["secrets", "--json"]):
        printed.append(output(words, environment))
    printed += [output(["cat", "canaries", path], environment) for path in some[:3]]
    printed.append(output(["grep", "--json", "--limit", "1000", "."], environment))
    # Else nothing would be found, whatever is shown.
    for place, text in (("logs", QUOTING), ("HTTP", QUOTING), ("HTTP", "paths/["), ("MCP", "[gitlab")):
        assert text in daemon[place], f"{place}: no {text}"
    stored = b"\0".join(read_all(folder / "state"))
    assert b"[gitlab" in stored and QUOTING.encode() in stored
    return {
        "embedding server": "\0".join(embeddings.inputs).encode(),
        "index and database": stored,
        "commands": "\0".join(printed).encode(),
        **{place: text.encode() for place, text in daemon.items()},
    }


def report(canaries: Sequence[Canary], places: Mapping[str, bytes]) -> None:
    seen = {place: [each for each in canaries if each.value.encode() in content] for place, content in places.items()}
    print(f"\n{len(canaries):,} canaries of {len(PROVIDERS)} kinds; seen in: ", end="")
    print(", ".join(f"{place} {len(found):,} ({len(places[place]):,} bytes)" for place, found in seen.items()))
    missed = {each for found in seen.values() for each in found}
    all_kinds, missed_kinds = (Counter(each.kind for each in group) for group in (canaries, missed))
    for kind, number in all_kinds.items():
        print(f"  {kind:24} {number - missed_kinds[kind]:4} of {number:4} masked")
    for canary in sorted(missed):
        where = ", ".join(place for place, found in seen.items() if canary in found)
        print(f"  missed: {canary.kind} in {canary.path}: {where}")


def file_of(stem: str, shape: str, secret: str) -> tuple[str, bytes]:
    if "\n" in secret and shape in ("env", "c", "yaml", "min"):
        secret = secret.replace("\n", "\\n")
    text = SHAPES[shape].format(secret)
    if shape == "ipynb":
        cell = {"cell_type": "code", "source": text.splitlines(keepends=True), "metadata": {}, "outputs": []}
        return f"{stem}.ipynb", json.dumps({"cells": [cell], "nbformat": 4, "metadata": {}}).encode()
    if shape == "utf16":
        return f"{stem}.txt", text.encode("utf-16")
    return f"{stem}.{'js' if shape == 'min' else shape}", text.encode()


def measure_corpus(folder: Path, files: int, megabytes: float) -> None:
    made, size = make_corpus(folder / "corpus.git", files, megabytes)
    print(f"\n{made:,} files of {size / 1e6:.0f} MB, searched by words only")
    for policy, name in ((OFF, "without"), ("{}", "with")):
        environment = configured(folder, folder / "corpus.git", "{provider: none}", policy, state=f"state-{name}")
        output(["apply"], environment)
        print(f"  first sync {name:8} {measure([*PROGRAM, 'sync'], environment)}")
    environment = configured(folder, folder / "corpus.git", "{provider: none}", "{}", state="state-without")
    output(["apply"], environment)
    print(f"  rules later         {measure([*PROGRAM, 'sync'], environment)}")
    run = json.loads(output(["history", "--json", "--limit", "1"], environment))["items"][0]
    print(f"  {run['error_message']} {run['chunks_embedded']:,} texts embedded")
    found = json.loads(output(["secrets", "--json"], environment))["items"]
    print(f"  found: {dict(Counter((each['rule'], each['action']) for each in found))}")


def configured(
    folder: Path,
    repository: Path,
    model: str,
    policy: str,
    state: str = "state",
    others: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """`others`: repositories that a server has, by name."""
    registry = folder / "repositories.yaml"
    registry.write_text(
        f"embedding: {model}\ndefaults: {{secrets: {policy}}}\n"
        f'repositories:\n  - {{name: canaries, path: "{repository}"}}\n'
        + "".join(f'  - {{name: {name}, git: "{url}"}}\n' for name, url in others.items())
    )
    return {
        **os.environ,
        "REPOSYNC_STATE_DIR": str(folder / state),
        "REPOSYNC_CONFIG": str(registry),
        "REPOSYNC_ENGINE_IDLE_SECONDS": "30",
    }


def output(words: list[str], environment: Mapping[str, str]) -> str:
    """Both streams of a command."""
    done = subprocess.run([*PROGRAM, *words], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{words}: {done.stderr}")
    return done.stdout + done.stderr


def read_all(folder: Path) -> list[bytes]:
    # Files of the engine are mostly zeros that are not written yet.
    return [ZEROS.sub(b"\0", path.read_bytes()) for path in sorted(folder.rglob("*")) if path.is_file()]


if __name__ == "__main__":
    main()
