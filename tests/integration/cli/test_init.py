"""`reposync init`: what a person answers, and what a script gives, becomes a registry file and its variables."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.pods import variables_of
from tests.fixtures.repositories import GitRepository
from tests.fixtures.terminal import Terminal
from tests.integration.cli.conftest import Types

TOKEN = "glpat-abcdefghij0123456789"
WEAK = "glpat-may-read-the-user-only"
PROJECTS = ("platform/payments-api", "platform/core/payments", "platform/web", "archive/web")


@pytest.fixture(scope="module")
def gitlab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GitLabServer]:
    repository = GitRepository.create(tmp_path_factory.mktemp("git") / "payments.git")
    repository.commit({"README.md": b"# Payments\n"})
    with GitLabServer() as server:
        ada = server.rights.add_user("ada", admin=True)
        server.add_token(TOKEN, scopes=("read_api", "read_repository"), user=ada, expires_at="2099-03-01")
        server.add_token(WEAK, scopes=("read_user",), user=ada)
        server.add_token("glpat-of-nobody-else", scopes=("api",))
        for path in PROJECTS:
            server.add_project(path, repository.path)
        yield server


@pytest.fixture(autouse=True)
def _nothing_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITLAB_TOKEN", "GITLAB_URL", "GITLAB_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


def at_a_terminal(folder: Path, *options: str, **environment: str) -> Terminal:
    command = [sys.executable, "-m", "reposync", "init", *options]
    return Terminal(command, env={**variables_of(folder), **environment}, folder=folder)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_person_answers_three_questions_and_gets_both_files_for_themselves_alone(
    gitlab: GitLabServer, tmp_path: Path
) -> None:
    with at_a_terminal(tmp_path) as terminal:
        terminal.answers("GitLab address", gitlab.url)
        terminal.reads("read_api and read_repository")
        terminal.answers("Access token", TOKEN)
        terminal.reads("as ada, read_api and read_repository, until 2099-03-01")
        terminal.answers("Name", "web")
        terminal.reads("1  project  archive/web")
        terminal.answers("Numbers", "2")
        terminal.answers("or Enter to finish", "platform")
        terminal.reads("1  group    platform\r\n")
        terminal.answers("Numbers", "1")
        terminal.reads("Chosen: platform/web, platform")
        terminal.answers("or Enter to finish", "")

        assert terminal.ends() == 0, terminal.shown

    assert terminal.shown.rstrip().endswith("`reposync serve` keeps them current from then on.")
    assert TOKEN not in terminal.shown
    registry, environment = tmp_path / "repositories.yaml", tmp_path / "reposync.env"
    assert (mode_of(registry), mode_of(environment)) == (0o600, 0o600)
    assert TOKEN not in registry.read_text()
    assert registry.read_text().splitlines()[1:] == [
        "gitlab:",
        "  - name: main",
        f"    url: {gitlab.url}",
        "    token: ${GITLAB_TOKEN}",
        "repositories:",
        "  - name: web",
        "    gitlab: main",
        "    project: platform/web",
        "groups:",
        "  - gitlab: main",
        "    group: platform",
    ]
    assert environment.read_text().splitlines()[-2:] == [f"REPOSYNC_CONFIG={registry}", f"GITLAB_TOKEN={TOKEN}"]


def test_a_wrong_token_is_asked_for_again_and_the_address_is_not(gitlab: GitLabServer, tmp_path: Path) -> None:
    with at_a_terminal(tmp_path, "--project", "platform/web") as terminal:
        terminal.answers("GitLab address", gitlab.url)
        terminal.answers("Access token", "glpat-mistyped")
        terminal.reads("does not accept the token")
        terminal.answers("Access token", WEAK)
        terminal.reads("error: The token lacks read_api and read_repository.")
        terminal.answers("Access token", TOKEN)

        assert terminal.ends() == 0, terminal.shown

    assert terminal.shown.count("GitLab address") == 1


def test_an_address_that_does_not_answer_is_asked_for_again(gitlab: GitLabServer, tmp_path: Path) -> None:
    with at_a_terminal(tmp_path, "--project", "platform/web", GITLAB_TOKEN=TOKEN) as terminal:
        terminal.answers("GitLab address", "http://127.0.0.1:9")
        terminal.reads("Check the address")
        terminal.answers("GitLab address", gitlab.url)

        assert terminal.ends() == 0, terminal.shown


@pytest.mark.parametrize("question", ["GitLab address", "Access token", "Name", "Numbers"])
def test_ctrl_c_at_any_question_leaves_nothing(gitlab: GitLabServer, tmp_path: Path, question: str) -> None:
    with at_a_terminal(tmp_path) as terminal:
        for asked, line in (("GitLab address", gitlab.url), ("Access token", TOKEN), ("Name", "web")):
            if asked == question:
                break
            terminal.answers(asked, line)
        terminal.reads(question)

        assert terminal.interrupts() == 130, terminal.shown

    assert "Interrupted." in terminal.shown
    assert list(tmp_path.iterdir()) == []


def test_a_person_who_does_not_want_a_file_replaced_is_asked_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "repositories.yaml").write_text("repositories: []\n")
    with at_a_terminal(tmp_path) as terminal:
        terminal.answers("repositories.yaml exists", "n")

        assert terminal.ends() == 130

    assert "GitLab address" not in terminal.shown
    assert (tmp_path / "repositories.yaml").read_text() == "repositories: []\n"


def test_a_script_gives_everything_and_the_registry_can_be_applied(
    gitlab: GitLabServer, types: Types, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITLAB_TOKEN", TOKEN)
    options = (
        "--gitlab-url",
        gitlab.url,
        "--project",
        "platform/web",
        "--project",
        "archive/web",
        "--group",
        "platform",
    )

    code, out, err = types("init", *options, "--json")

    assert code == 0, err
    written = json.loads(out)
    assert (written["repositories"], written["groups"]) == (["platform/web", "archive/web"], ["platform"])
    assert written["gitlab"]["user"] == "ada"
    assert TOKEN not in out + err
    assert types("config", "check")[1] == f"ok: 2 repositories, 1 group, 1 GitLab server in {written['registry']}\n"
    assert types("apply")[0] == 0
    assert "archive/web" in types("repos", "list")[1]


def test_a_token_in_a_file_is_referred_to_and_not_copied(gitlab: GitLabServer, types: Types, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{TOKEN}\n")

    options = ("--gitlab-url", gitlab.url, "--token-file", "secret", "--project", "platform/web")
    code, _, err = types("init", *options, "--output", "conf.yaml")

    assert code == 0, err
    environment = (tmp_path / "reposync.env").read_text()
    assert f"GITLAB_TOKEN_FILE={tmp_path / 'secret'}\n" in environment
    assert TOKEN not in environment
    assert f"REPOSYNC_CONFIG={tmp_path / 'conf.yaml'}\n" in environment


def test_a_variable_of_its_own_name_is_what_the_registry_refers_to(
    gitlab: GitLabServer, types: Types, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODE_SEARCH_TOKEN", TOKEN)

    options = ("--gitlab-url", gitlab.url, "--token-env", "CODE_SEARCH_TOKEN", "--project", "platform/web")
    assert types("init", *options)[0] == 0

    assert "token: ${CODE_SEARCH_TOKEN}\n" in (tmp_path / "repositories.yaml").read_text()
    assert f"CODE_SEARCH_TOKEN={TOKEN}\n" in (tmp_path / "reposync.env").read_text()


@pytest.mark.parametrize(("is_oauth", "code"), [("false", 0), ("true", 2)])
def test_a_token_of_glab_is_taken_unless_a_browser_signed_in(
    gitlab: GitLabServer, types: Types, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_oauth: str, code: int
) -> None:
    host = gitlab.url.removeprefix("http://")
    program = tmp_path / "bin" / "glab"
    program.parent.mkdir()
    lines = {f"is_oauth2 --host {host}": is_oauth, f"token --host {host}": TOKEN, "host": "gitlab.example.com"}
    cases = "".join(f'"config get {words}") echo "{value}" ;;\n' for words, value in lines.items())
    program.write_text(f'#!/bin/sh\ncase "$*" in\n{cases}*) exit 1 ;;\nesac\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")

    ended, _, err = types("init", "--gitlab-url", gitlab.url, "--project", "platform/web")

    assert ended == code, err
    assert ("token: glab" in err) == (code == 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--gitlab-url"),
        (("--gitlab-url", "{url}"), "--token-env or --token-file"),
        (("--gitlab-url", "{url}", "--token-env", "GOOD"), "--project or --group"),
        (("--gitlab-url", "{url}", "--token-env", "UNSET"), "UNSET is not set"),
        (("--gitlab-url", "{url}", "--token-env", "glpat-a-token"), "not a token"),
        (("--gitlab-url", "ssh://gitlab.example.com", "--token-env", "GOOD"), "must start with https://"),
    ],
)
def test_without_a_terminal_what_is_missing_is_an_error_that_names_the_option(
    gitlab: GitLabServer, types: Types, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...], said: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("GOOD", TOKEN)

    code, out, err = types("init", *(word.format(url=gitlab.url) for word in options))

    assert code == 2
    assert said in err
    assert "glpat" not in out + err
    assert list(tmp_path.iterdir()) == []


def test_files_that_exist_are_replaced_on_request_only(
    gitlab: GitLabServer, types: Types, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITLAB_TOKEN", TOKEN)
    kept = tmp_path / "reposync.env"
    kept.write_text("MINE=1\n")
    options = ("--gitlab-url", gitlab.url, "--project", "platform/web")

    code, _, err = types("init", *options)
    assert (code, kept.read_text()) == (4, "MINE=1\n")
    assert "--force" in err

    assert types("init", *options, "--force")[0] == 0
    assert TOKEN in kept.read_text()
    assert mode_of(kept) == 0o600


def test_a_project_that_the_token_does_not_see_is_an_error_before_anything_is_written(
    gitlab: GitLabServer, types: Types, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITLAB_TOKEN", TOKEN)

    code, _, err = types("init", "--gitlab-url", gitlab.url, "--project", "platform/web", "--group", "nowhere")

    assert code == 1
    assert "Group nowhere was not found" in err
    assert list(tmp_path.iterdir()) == []
