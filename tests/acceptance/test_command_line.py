"""A newcomer's way through the commands, with real processes and the embedded engine."""

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import sqlite3
import struct
import subprocess
import termios

import pytest

from tests.acceptance.conftest import Person
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.pods import until
from tests.fixtures.repositories import GitRepository, Symlink

BILLING = b'''"""Billing."""


def remove_expired_sessions(sessions, now):
    """Drop every session whose deadline has passed."""
    return [session for session in sessions if session.deadline > now]
'''
CONFIGURATION = """
embedding: {{provider: openai, url: "{url}", model: test/words, dimensions: 64}}
repositories:
  - {{name: payments, path: "{path}", schedule: "every 6 hours"}}
"""
FILES = 2_500
# Batches of 200 files between the embedding server and the index when a process is killed.
IN_FLIGHT = 5 * 200
RUN_KEYS = """
id asked_by repository status trigger removal scheduled_for queued_at next_attempt_at started_at completed_at
duration_seconds elapsed_seconds attempt worker commit_before commit_after files_processed files_deleted files_skipped
files_added files_changed files_failed commit_title commit_author chunks_embedded chunks_reused error_code
error_message brake progress
"""


@pytest.fixture
def configured(person: Person, repository: GitRepository, embeddings: EmbeddingServer) -> Person:
    repository.commit({"billing/sessions.py": BILLING, "README.md": b"# Payments\n", "link": Symlink("README.md")})
    person.applies(CONFIGURATION.format(url=embeddings.url, path=repository.path))
    return person


def test_sync_search_history_and_the_other_commands_agree(configured: Person, repository: GitRepository):
    done = configured.types("sync")
    assert re.search(r"payments: completed at \w{10}: 2 files stored, 1 skipped, 2 chunks embedded, in", done.stdout)
    assert "1 symlink" in done.stdout
    assert "payments: indexing" in done.stderr

    (run,) = configured.lists("history")
    assert run.keys() == set(RUN_KEYS.split())
    assert (run["status"], run["trigger"], run["files_processed"]) == ("completed", "command", 2)
    assert run["commit_after"] == repository.head()
    assert configured.types("history", "--status", "failed").stdout == "No run is failed.\n"
    blocked = ("history", "--repository", "payments", "--status", "blocked")
    assert configured.types(*blocked).stdout == "No run of payments is blocked.\n"
    table = configured.types("history").stdout
    assert all(word in table for word in ("payments", "completed", run["id"][:8]))

    found = configured.lists("search", "drop sessions whose deadline has passed", "--limit", "1")
    place = {"repository", "path", "start_line", "end_line", "language", "text", "url"}
    assert found[0].keys() == place | {
        "score",
        "parts",
        "symbols",
        "definitions",
        "outdated",
        "masked",
        "phrasings",
        "meaning_indexed",
    }
    assert (found[0]["path"], found[0]["language"], found[0]["start_line"]) == ("billing/sessions.py", "python", 1)
    explained = configured.types("search", "drop sessions", "--explain").stdout
    assert all(part in explained for part in ("words", "meaning", "definition", "path"))
    shown = configured.types("search", "drop sessions whose deadline has passed").stdout
    assert "billing/sessions.py:5" in shown
    assert "> " in shown
    assert configured.lists("search", "sessions", "--path", "*.md", "--language", "py") == []
    assert "Did you mean 'python'" in configured.types("search", "x", "--language", "pythn", exit_code=2).stderr
    assert [each["path"] for each in configured.lists("search", "payments", "--path", "*.md")] == ["README.md"]

    shown = configured.asks("runs", "show", run["id"][:8])
    assert shown["problems"] == [{"path": "link", "reason": "symlink", "detail": shown["problems"][0]["detail"]}]
    (listed,) = configured.lists("repos", "list")
    assert (listed["name"], listed["files"], listed["schedule"]) == ("payments", 2, "every 6 hours")
    assert configured.asks("repos", "show", "payments")["last_commit"] == repository.head()

    again = configured.lists("sync")
    assert (again[0]["status"], again[0]["files_processed"]) == ("completed", 0)
    assert len(configured.lists("history", "--limit", "1")) == 1
    assert configured.lists("history", "--status", "failed") == []


def test_a_terminal_shows_one_line_that_changes(configured: Person):
    configured.environment["TERM"] = "xterm"
    terminal, its_side = pty.openpty()
    fcntl.ioctl(its_side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
    process = subprocess.Popen(
        configured.command("sync"), env=configured.variables(), cwd=configured.home, stdout=its_side, stderr=its_side
    )
    os.close(its_side)
    shown = b""
    # The terminal's other end is closed when the process is gone: reading then fails or gives nothing.
    with contextlib.suppress(OSError):
        while piece := os.read(terminal, 65_536):
            shown += piece
    os.close(terminal)
    assert process.wait() == 0
    text = shown.decode()
    assert "\x1b[" in text
    assert "2 of 2 files" in text
    assert "payments: indexing" in text
    assert "payments: completed" in text


def test_a_folder_syncs_with_nothing_configured_and_keeps_two_of_one_name_apart(person: Person, tmp_path):
    # `none` keeps the embedded model out of this test; the model has its own.
    person.applies("embedding: {provider: none}\n")
    for place in ("one", "two"):
        folder = tmp_path / place / "app"
        (folder / "src").mkdir(parents=True)
        (folder / "src" / "main.py").write_text(f"def {place}(): pass\n")
        subprocess.run(["git", "init", "--quiet", folder], check=True)
        commit = ["-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "-m", "x"]
        subprocess.run(["git", "-C", folder, "add", "."], check=True)
        subprocess.run(["git", "-C", folder, *commit], check=True)
    (plan,) = person.lists("sync", "--plan", str(tmp_path / "one" / "app" / "src"))
    (first,) = person.lists("sync", str(tmp_path / "one" / "app" / "src"))
    assert (plan["chunks"], plan["chunks_to_embed"], plan["characters_to_embed"]) == (1, 0, 0), "no model is asked"
    assert (first["files_processed"], first["chunks_embedded"], first["chunks_reused"]) == (1, 0, 0)
    (second,) = person.lists("sync", str(tmp_path / "two" / "app"))
    assert first["repository"] == "app"
    assert second["repository"].startswith("app-")
    # The name alone is enough from now on.
    (again,) = person.lists("sync", "app")
    assert (again["repository"], again["files_processed"]) == ("app", 0)


WRONG = [
    (("frobnicate",), 2, "No such command"),
    (("sync", "ssh://git@example.com/x.git"), 2, "ssh://"),
    (("sync", "https://user:secret@example.com/x.git"), 2, "shell's history"),
    (("sync", "./plain"), 2, "plain is not in a git repository"),
    (("sync", "paymets"), 3, "Did you mean 'payments'?"),
    (("sync", ""), 2, "target"),
    (("sync", f"./{'long' * 100}/a"), 3, "is not a registered repository"),
    (("sync", "~nobody-of-this-name/a"), 3, "is not a registered repository"),
    (("history", "--repository", "paymets"), 3, "Did you mean 'payments'?"),
    (("history", "--limit", "0"), 2, "--limit"),
    (("runs", "show", "ffff"), 3, "No run has the id"),
    (("runs", "retry", "RUN"), 4, ""),
    (("repos", "pause", "paymets"), 3, "Did you mean 'payments'?"),
    (("repos", "add", "payments", "--path", "SOURCE"), 4, ""),
    (("repos", "add", "other", "--path", "./plain"), 2, "plain is not a git repository on this machine"),
    (("repos", "remove", "payments"), 2, "--yes"),  # there is no terminal for the question
    (("repos", "remove", "payments", "--yes"), 4, ""),
    (("index", "status", "paymets"), 3, "Did you mean 'payments'?"),
    (("search", " "), 2, "empty"),
    (("search", "x", "--repository", "paymets"), 3, "Did you mean 'payments'?"),
]


def test_what_is_not_possible_is_explained_in_a_sentence_and_has_its_exit_code(
    configured: Person, repository: GitRepository
):
    (configured.home / "plain").mkdir()
    repository.commit({b"evil\x1b[2J\n.py": b"\x1b[31mred = 'sessions'\x1b[0m\n# sessions sessions\n"})
    assert configured.types("history").stdout.startswith("No run yet.")
    (plan,) = configured.lists("sync", "--plan")
    assert "3 to store" in configured.types("sync", "--plan").stdout
    assert (plan["files_to_store"], plan["chunks_to_embed"], configured.lists("history")) == (3, 3, [])
    configured.types("sync")
    (run,) = configured.lists("history")

    places = {"RUN": run["id"], "SOURCE": str(repository.path)}
    for words, exit_code, message in WRONG:
        done = configured.types(*[places.get(word, word) for word in words], exit_code=exit_code)
        assert message in done.stderr, words
        assert "secret" not in done.stderr.replace("secrets", "") and done.stdout == ""
    assert len(configured.lists("history")) == len(configured.lists("repos", "list")) == 1, (
        "mistakes leave nothing behind"
    )
    for words in (("search", "red sessions"), ("runs", "show", run["id"])):
        assert "\x1b" not in configured.types(*words).stdout, "control characters are escaped"


def test_a_wrong_configuration_starts_nothing(person: Person):
    person.configures("repositorys: []\n")
    for command in ("apply", "serve"):
        done = person.types(command, exit_code=2)
        assert "repositories.yaml:1:1" in done.stderr
        assert "repositories" in done.stderr
    assert not list(person.home.rglob("engine.json"))
    person.configures("")
    assert "Nothing is registered" in person.types("sync", exit_code=2).stderr


@pytest.mark.parametrize(
    ("how", "options", "note"),
    [(signal.SIGTERM, (), "Interrupted"), (signal.SIGINT, ("--full",), "`reposync sync --full` starts over")],
)
def test_ctrl_c_or_sigterm_ends_a_run_as_cancelled_and_the_next_one_continues(
    configured: Person,
    repository: GitRepository,
    embeddings: EmbeddingServer,
    how: signal.Signals,
    options: tuple[str, ...],
    note: str,
):
    repository.many(100)
    with embeddings.holding():
        process = configured.starts("sync", *options)
        embeddings.wait_for_waiting(1)
        process.send_signal(how)
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    assert note in errors and "Traceback" not in errors
    (run,) = configured.lists("history")
    assert run["status"] == "cancelled"
    (after,) = configured.lists("sync")
    assert after["status"] == "completed"
    assert configured.asks("repos", "show", "payments")["files"] == 102


def test_kill_9_in_the_middle_is_taken_over_and_embeds_only_what_was_in_flight_twice(
    configured: Person, repository: GitRepository, embeddings: EmbeddingServer
):
    repository.many(FILES)
    process = configured.starts("sync")
    # Some batches are stored, some are on their way.
    until(lambda: len(embeddings.inputs) > FILES // 2)
    with embeddings.holding():
        embeddings.wait_for_waiting(1)
        process.kill()
        process.communicate(timeout=PATIENCE_SECONDS)
    (after,) = configured.lists("sync")
    assert after["status"] == "completed"
    runs = configured.lists("history")
    assert {run["status"] for run in runs} == {"completed"}
    assert max(run["attempt"] for run in runs) == 2
    assert configured.asks("repos", "show", "payments")["chunks"] == FILES + 2
    assert not configured.lists("sync")[0]["files_processed"]
    twice = len(embeddings.inputs) - len(set(embeddings.inputs))
    assert twice <= IN_FLIGHT, f"{twice} texts were embedded twice"


@pytest.mark.full
def test_an_engine_killed_in_the_middle_of_a_sync_is_started_again_and_the_run_goes_on(
    configured: Person, repository: GitRepository, embeddings: EmbeddingServer
):
    configured.types("sync")
    repository.many(100)
    with embeddings.holding():
        process = configured.starts("sync", "--json")
        embeddings.wait_for_waiting(1)
        (record,) = configured.home.rglob("engine.json")
        os.kill(json.loads(record.read_text())["pid"], signal.SIGKILL)
    reported, _ = process.communicate(timeout=PATIENCE_SECONDS)
    (run,) = json.loads(reported)["items"]
    assert (run["status"], run["files_processed"]) == ("completed", 100)
    assert configured.asks("repos", "show", "payments")["chunks"] == 102
    assert configured.lists("sync")[0]["files_processed"] == 0, "the index is whole"


@pytest.mark.full
def test_a_repository_that_is_never_due_is_synced_with_all_others_and_one_synced_by_path_is_not(
    configured: Person, repository: GitRepository
):
    by_hand = GitRepository.create(configured.home / "scratch.git")
    by_hand.commit({"b.py": b"y = 2\n"})

    added = configured.types("repos", "add", "second", "--path", str(repository.path), "--schedule", "never").stdout
    configured.types("sync", str(by_hand.path))
    runs = configured.lists("sync")
    listed = {each["name"]: (each["schedule"], each["cron_expression"]) for each in configured.lists("repos", "list")}

    assert added == "second: registered, on request only\n"
    assert {(run["repository"], run["status"]) for run in runs} == {("payments", "completed"), ("second", "completed")}
    assert (listed["second"], listed["scratch"]) == (("on request only", None), (None, None))


def test_an_unexpected_error_is_reported_without_the_statement(person: Person, repository: GitRepository):
    repository.commit({"a.py": b"x = 1\n"})
    person.types("repos", "add", "payments", "--path", str(repository.path))
    with sqlite3.connect(person.home / ".local/state/reposync/reposync.db") as database:
        database.execute(
            "CREATE TRIGGER refuse BEFORE UPDATE ON repositories BEGIN SELECT RAISE(ABORT, 'unexpected'); END"
        )

    said = person.types("repos", "pause", "payments", exit_code=1).stderr

    assert said.startswith("error: IntegrityError: unexpected\n")
    assert "UPDATE" not in said
