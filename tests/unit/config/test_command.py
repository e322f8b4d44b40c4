"""`reposync config`, as the command that people type."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from reposync.cli.main import cli

REGISTRY = """\
gitlab:
  - {name: main, url: "https://gitlab.example.com", token: "${GITLAB_TOKEN}"}
repositories:
  - {name: payments, gitlab: main, project: platform/payments-api, schedule: every 30 minutes}
  - {name: book, git: "https://reader:${PASSWORD}@git.example.com/book.git", timezone: Europe/Berlin}
groups:
  - {gitlab: main, group: platform, include: ["platform/**"]}
qdrant: {url: "https://qdrant.example.com", api_key: "${GITLAB_TOKEN}"}
"""
SECRETS = {"GITLAB_TOKEN": "glpat-hush", "PASSWORD": "hush-word"}
WRONG = "defaults: {shedule: '@daily'}\nrepositories:\n  - {name: a}\n"


@dataclass
class Shell:
    """Runs `reposync config` in this process, in an empty folder and environment."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def __call__(self, *arguments: str, **environ: str) -> Result:
        for name in os.environ:
            self.monkeypatch.delenv(name)
        for name, value in {"HOME": str(self.folder / "home"), **environ}.items():
            self.monkeypatch.setenv(name, value)
        self.monkeypatch.chdir(self.folder)
        return CliRunner().invoke(cli, ["config", *arguments])

    def json(self, *arguments: str, **environ: str) -> Any:
        return json.loads(self(*arguments, "--json", **environ).stdout)


@pytest.fixture
def reposync_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(tmp_path, monkeypatch)


def test_check_counts_what_it_found_and_warns(reposync_config: Shell, tmp_path: Path) -> None:
    (tmp_path / "repositories.yaml").write_text(REGISTRY)

    done = reposync_config("check", **SECRETS | {"GITLAB_TOKEN": ""})

    file = tmp_path / "repositories.yaml"
    assert done.exit_code == 0
    assert done.stdout == f"ok: 2 repositories, 1 group, 1 GitLab server in {file}\n"
    assert done.stderr.startswith(f"warning: {file}:2:60: `token` is empty, because ${{GITLAB_TOKEN}} is")
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize(
    ("model", "more", "warned"),
    [
        ("nomic-embed-text", 'query_prefix: ""', ["query_prefix"]),
        ("nomic-embed-text", 'query_prefix: "", document_prefix: ""', ["query_prefix", "document_prefix"]),
        ("nomic-embed-text", 'query_prefix: "find: "', []),
        ("nomic-embed-text", "query_prefix: null", []),
        ("nomic-ai/CodeRankEmbed", 'document_prefix: ""', []),
        ("nomic-embed-text", 'query_prefix: "", query_input_type: query', []),
        ("unknown", 'query_prefix: "", document_prefix: ""', []),
    ],
)
def test_check_warns_if_a_prefix_that_the_model_needs_is_turned_off(
    reposync_config: Shell, tmp_path: Path, model: str, more: str, warned: list[str]
) -> None:
    section = f"embedding: {{provider: openai, url: 'http://localhost', model: {model}, {more}}}\n"
    (tmp_path / "r.yaml").write_text(section)
    messages = [each["message"] for each in reposync_config.json("check", "r.yaml")["warnings"]]
    assert [each.split("`")[1] for each in messages] == warned
    assert all(f"but {model} needs 'search_" in each for each in messages)


def test_all_problems_are_on_standard_error_and_the_exit_code_is_2(reposync_config: Shell, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(WRONG)

    done, as_json = reposync_config("check", "r.yaml"), reposync_config("check", "r.yaml", "--json")

    assert (done.exit_code, done.stdout, as_json.exit_code) == (2, "", 2)
    assert done.stderr == (
        "r.yaml:1:12: unknown key `shedule` in defaults; did you mean `schedule`?\n"
        "r.yaml:3:5: repositories[0]: exactly one of `gitlab`, `git` and `path` is required: none is given\n"
    )
    report = json.loads(as_json.stdout)
    assert (report["ok"], report["file"], report["warnings"]) == (False, "r.yaml", [])
    places = [(each["file"], each["line"], each["column"]) for each in report["errors"]]
    assert places == [("r.yaml", 1, 12), ("r.yaml", 3, 5)]


def test_check_as_json_is_one_document(reposync_config: Shell, tmp_path: Path) -> None:
    (tmp_path / "right.yaml").write_text(REGISTRY)

    right = {"ok": True, "file": "right.yaml", "errors": [], "warnings": [], "repositories": 2}
    assert reposync_config.json("check", "right.yaml", **SECRETS) == right
    assert reposync_config("check").stdout == "ok: no registry file, the defaults apply\n"


def test_a_wrong_setting_of_this_machine_is_no_obstacle_to_the_check_of_a_named_file(
    reposync_config: Shell, tmp_path: Path
) -> None:
    (tmp_path / "r.yaml").write_text("{}\n")

    unnamed, named = (reposync_config("check", *file, REPOSYNC_CONFIG="gone.yaml") for file in ((), ("r.yaml",)))

    assert "REPOSYNC_CONFIG names gone.yaml" in str(unnamed.exception)
    assert (named.exit_code, named.stdout) == (0, "ok: 0 repositories in r.yaml\n")
