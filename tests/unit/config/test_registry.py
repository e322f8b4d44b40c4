from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from reposync.config.loading import LoadedRegistry, checked_repository, load_registry
from reposync.config.registry import Registry, Repository, ResolvedRepository
from reposync.errors import ConfigError
from tests.unit.config.conftest import Load

FULL = """\
gitlab:
  - {name: main, url: "https://gitlab.example.com/", token: "${GITLAB_TOKEN}", ca_file: certs/ca.pem}
defaults:
  schedule: every 2 hours
  timezone: Europe/Berlin
  collection: shared
  chunk: {size: 5000, overlap: 500}
  max_file_bytes: 2000
  include: ["*.py"]
  exclude: ["gen/"]
repositories:
  - {name: payments, gitlab: main, project: platform/payments-api, branch: main, schedule: "*/30 * * * *"}
  - {name: handbook, git: "https://reader:${PASSWORD}@git.example.com/handbook.git", timezone: UTC, chunk: {size: 900}}
  - {name: here, path: ., collection: own, include: [], exclude: ["*.md"], max_file_bytes: 5, chunk: {overlap: 0}}
groups:
  - {gitlab: main, group: platform, include: ["platform/**"], exclude: ["**/archive-*"]}
"""


def resolved(loaded: LoadedRegistry) -> dict[str, ResolvedRepository]:
    return {each.name: each for each in loaded.registry.resolved()}


def test_a_repository_says_where_it_is_without_a_secret(load: Load, tmp_path: Path) -> None:
    found = resolved(load(FULL, GITLAB_TOKEN="glpat-1", PASSWORD="p@ss/word"))

    assert {name: (each.kind, each.location) for name, each in found.items()} == {
        "payments": ("gitlab", "gitlab:main:platform/payments-api"),
        "handbook": ("git", "https://git.example.com/handbook.git"),
        "here": ("path", str(tmp_path)),
    }
    assert "p@ss" not in repr(found) + str(found["handbook"])
    assert "glpat-1" not in repr(found)


def test_what_a_repository_does_not_say_comes_from_the_defaults(load: Load) -> None:
    payments = resolved(load(FULL, GITLAB_TOKEN="x", PASSWORD="y"))["payments"]

    assert payments.branch == "main"
    assert payments.schedule.cron == "*/30 * * * *"
    assert payments.schedule.timezone == "Europe/Berlin"
    assert payments.collection == "shared"
    assert (payments.chunk_size, payments.chunk_overlap, payments.max_file_bytes) == (5000, 500, 2000)
    assert (payments.include, payments.exclude) == (("*.py",), ("gen/",))


def test_what_a_repository_says_wins_over_the_defaults_key_by_key(load: Load) -> None:
    found = resolved(load(FULL, GITLAB_TOKEN="x", PASSWORD="y"))

    handbook, here = found["handbook"], found["here"]
    assert (handbook.schedule.cron, handbook.schedule.timezone) == ("0 */2 * * *", "UTC")
    assert (handbook.chunk_size, handbook.chunk_overlap) == (900, 180)
    assert (here.chunk_size, here.chunk_overlap, here.max_file_bytes) == (5000, 0, 5)
    assert (here.include, here.exclude, here.collection) == ((), ("*.md",), "own")


def test_a_resolved_repository_carries_what_its_source_needs(load: Load, tmp_path: Path) -> None:
    found = resolved(load(FULL, GITLAB_TOKEN="glpat-1", PASSWORD="p@ss/word"))

    server = found["payments"].gitlab
    assert server is not None
    assert server.token is not None
    assert (server.url, server.token.get_secret_value()) == ("https://gitlab.example.com", "glpat-1")
    assert server.ca_file == tmp_path / "certs/ca.pem"
    assert (server.connect_timeout_seconds, server.read_timeout_seconds) == (10, 60)
    handbook = found["handbook"]
    assert handbook.password is not None
    assert (handbook.git_url, handbook.username) == ("https://git.example.com/handbook.git", "reader")
    assert handbook.password.get_secret_value() == "p@ss/word"
    assert found["here"].path == tmp_path


@pytest.mark.parametrize(
    ("entry", "username", "password"),
    [
        ("git: https://x/y", None, None),
        ("git: 'https://${S}@x/y'", "oauth2", "hush"),
        ("git: 'https://user@x/y', password: '${S}'", "user", "hush"),
        ("git: 'https://:${S}@x/y'", "oauth2", "hush"),
        ("git: 'https://a%40b:p%2Fq@x/y'", "a@b", "p/q"),
        ("git: https://x/y, password: '${S}'", "oauth2", "hush"),
        ("git: https://x/y, username: me, password: '${S}'", "me", "hush"),
    ],
)
def test_credentials_of_a_git_address_are_taken_apart(
    entry: str, username: str | None, password: str | None, load: Load
) -> None:
    each = resolved(load(f"repositories:\n  - {{name: a, {entry}}}\n", S="hush"))["a"]

    assert (each.location, each.git_url) == ("https://x/y", "https://x/y")
    assert each.username == username
    assert (each.password.get_secret_value() if each.password else None) == password


def test_a_relative_path_starts_at_the_folder_of_the_file_not_at_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/registry.yaml").write_text("repositories:\n  - {name: a, path: ../src/./x}\n")
    monkeypatch.chdir(tmp_path)

    loaded = load_registry(Path("etc/registry.yaml"), {})

    assert resolved(loaded)["a"].path == tmp_path / "src/x"


def test_a_registry_reached_by_a_symlink_means_the_folder_of_the_link(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data/registry.yaml").write_text("repositories:\n  - {name: a, path: x}\n")
    (tmp_path / "registry.yaml").symlink_to("..data/registry.yaml")

    assert resolved(load_registry(tmp_path / "registry.yaml", {}))["a"].path == tmp_path / "x"


def test_a_home_folder_is_filled_in(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")

    assert resolved(load("repositories:\n  - {name: a, path: ~/x}\n"))["a"].location == "/home/somebody/x"


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null\n", "repositories:\ngitlab:\ndefaults:\nqdrant:\n"])
def test_a_file_that_says_nothing_is_an_empty_registry_with_the_defaults(text: str, load: Load) -> None:
    assert load(text).registry == Registry()
    assert load(text).warnings == ()


def test_no_file_at_all_is_an_empty_registry_with_the_defaults() -> None:
    loaded = load_registry(None, {})

    assert (loaded.registry, loaded.warnings, loaded.path) == (Registry(), (), None)
    assert loaded.registry.defaults.chunk.size == 7000
    assert loaded.registry.embedding.provider == "local"
    assert loaded.registry.qdrant.url is None


def test_a_byte_order_mark_is_no_part_of_the_first_key(load: Load) -> None:
    assert load(b"\xef\xbb\xbfdefaults: {collection: x}\r\n").registry.defaults.collection == "x"


@pytest.mark.parametrize("value", ["yes", "no", "on", "off", "2024-01-01"])
def test_what_older_yaml_takes_for_something_else_is_text(value: str, load: Load) -> None:
    registry = load(f"repositories:\n  - {{name: a, path: ., branch: {value}}}\n").registry

    assert registry.repositories[0].branch == value


def test_the_environments_qdrant_wins_over_the_file(load: Load) -> None:
    text = "qdrant: {url: 'http://file:6333', api_key: '${K:-}', replication_factor: 3}\n"

    from_file = load(text, K="file-key").registry.qdrant
    from_environment = load(text, K="file-key", QDRANT_URL="https://env/", QDRANT_API_KEY="env-key").registry.qdrant

    assert from_file.url == "http://file:6333"
    assert from_environment.url == "https://env"
    assert from_environment.api_key is not None
    assert from_environment.api_key.get_secret_value() == "env-key"
    assert from_environment.replication_factor == 3


def test_a_file_that_is_missing_or_a_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no registry file .*gone\.yaml"):
        load_registry(tmp_path / "gone.yaml", {})
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_registry(tmp_path, {})


def test_a_registry_can_come_from_a_pipe(load: Load) -> None:
    read, write = os.pipe()
    os.write(write, b"defaults: {collection: piped}\n")
    os.close(write)
    try:
        assert load_registry(Path(f"/dev/fd/{read}"), {}).registry.defaults.collection == "piped"
    finally:
        os.close(read)


WARNINGS = {
    "a token in the clear": (
        "gitlab:\n  - {name: a, url: 'https://x', token: glpat-hush}\n",
        "2:40: `token` stands in the clear",
    ),
    "a token as default": (
        "gitlab:\n  - {name: a, url: 'https://x', token: '${T:-glpat-hush}'}\n",
        "2:40: the default of `token` stands in the clear",
    ),
    "a variable without braces": (
        "qdrant:\n  api_key: $QDRANT_KEY\n",
        "2:12: `api_key` is taken as it stands; for the value of a variable write ${QDRANT_KEY}",
    ),
    "a token that is empty": (
        "gitlab: [{name: a, url: 'https://x', token: '${EMPTY}'}]\n",
        "`token` is empty, because",
    ),
    "a password in an address": (
        "repositories:\n  - {name: a, git: 'https://user:hush@x/y'}\n",
        "2:20: credentials stand in the address in the clear",
    ),
    "a token alone in an address": (
        "repositories:\n  - {name: a, git: 'https://hush@x/y'}\n",
        "2:20: credentials stand in the address in the clear",
    ),
    "a token over http": (
        "gitlab:\n  - {name: a, url: 'http://gitlab.example.com', token: '${SET}'}\n",
        "2:20: the token is sent unencrypted over http://",
    ),
    "a password over http": (
        "repositories:\n  - {name: a, git: 'http://u:${SET}@x/y'}\n",
        "2:20: the password is sent unencrypted over http://",
    ),
    "a certificate that is not there": (
        "gitlab:\n  - {name: a, url: 'https://x', ca_file: ca.pem}\n",
        "2:42: there is no such file on this machine",
    ),
    "a folder that is not there": (
        "repositories:\n  - {name: a, path: gone}\n",
        "2:21: there is no such folder on this machine",
    ),
    "a step that pauses at midnight": (
        "defaults: {schedule: '0 */5 * * *'}\n",
        "1:22: `*/5` starts again at hour 0: after hour 20 the next tick comes 4 hours later, not 5",
    ),
    "a step that pauses at the hour": (
        "repositories:\n  - {name: a, path: ., schedule: '5-15,*/7 * * * *'}\n",
        "2:34: `*/7` starts again at minute 0: after minute 56 the next tick comes 4 minutes later, not 7",
    ),
    "a step of days, months being of different lengths": (
        "defaults: {schedule: '0 0 */2 * *'}\n",
        "1:22: `*/2` starts again at day 1: after day 31 the next tick comes 1 day later, not 2",
    ),
    "a step in when to look for projects": (
        "gitlab: [{name: m, url: 'https://x'}]\ngroups: [{gitlab: m, group: g, discover: '*/45 * * * *'}]\n",
        "2:42: `*/45` starts again at minute 0",
    ),
    "one source under two names": (
        "repositories:\n  - {name: a, path: .}\n  - {name: b, path: ./}\n",
        "3:5: the same source as 'a', in the same collection: it is indexed twice",
    ),
}


@pytest.mark.parametrize("suspicion", WARNINGS)
def test_what_is_probably_not_meant_is_a_warning_with_its_place(suspicion: str, load: Load) -> None:
    text, expected = WARNINGS[suspicion]

    warnings = load(text, EMPTY="", SET="x" * 8).warnings

    assert len(warnings) == 1
    shown = f"{warnings[0].line}:{warnings[0].column}: {warnings[0].message}"
    assert shown.startswith(expected) if expected[0].isdecimal() else expected in shown
    assert "hush" not in shown


def test_a_registry_as_it_should_be_has_no_warnings(load: Load, tmp_path: Path) -> None:
    (tmp_path / "certs").mkdir()
    (tmp_path / "certs/ca.pem").touch()

    assert load(FULL, GITLAB_TOKEN="glpat-1", PASSWORD="x").warnings == ()
    assert load("gitlab: [{name: a, url: 'http://localhost:8080', token: '${T:-}'}]\n").warnings == ()


def test_a_repository_from_a_request_is_checked_like_one_in_the_file() -> None:
    registry = Registry.model_validate({"gitlab": [{"name": "main", "url": "https://x"}]})

    assert checked_repository(registry, {"name": "a", "gitlab": "main", "project": "g/p"}).location == "gitlab:main:g/p"
    with pytest.raises(ConfigError) as caught:
        checked_repository(registry, {"name": "a", "pth": ".", "schedule": "0 0 30 2 *", "chunk": {"siz": 1}})
    assert [line.split(";")[0] for line in str(caught.value).splitlines()] == [
        "exactly one of `gitlab`, `git` and `path` says where it is: none is given",
        "schedule '0 0 30 2 *': the day-of-month is wrong or never comes",
        "unknown key `siz` in chunk",
        "unknown key `pth`",
    ]
    with pytest.raises(
        ConfigError, match="no server in the top-level `gitlab` has the name 'mian'; did you mean `main`"
    ):
        checked_repository(registry, {"name": "a", "gitlab": "mian", "project": "g/p"})
    with pytest.raises(ConfigError, match="overlap must be below size"):
        checked_repository(registry, {"name": "a", "path": ".", "chunk": {"overlap": 7000}})
    with pytest.raises(ConfigError) as secret:
        checked_repository(registry, {"name": "a", "git": "https://user:hush@x:y/z", "password": "hush"})
    assert "hush" not in str(secret.value)


def test_a_registry_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Registry().defaults.collection = "other"  # type: ignore[misc]


def test_a_registry_made_by_a_program_is_checked_as_a_whole() -> None:
    twice = [Repository(name="a", git="https://x/y"), Repository(name="a", git="https://x/z")]

    with pytest.raises(ValidationError, match="'a' is there already"):
        Registry(repositories=tuple(twice))


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("0s", 0),
        ("30s", 30),
        ("90m", 5400),
        ("24h", 86_400),
        ("7d", 604_800),
        ("1.5h", 5400),
        ("45", 45),
        ("'${KEEP}'", 60),
    ],
)
def test_a_duration_is_written_with_its_unit_or_in_seconds(written: str, seconds: float, load: Load) -> None:
    registry = load(f"index: {{keep_retired: {written}}}", KEEP="1m").registry

    assert registry.index.keep_retired_seconds == seconds


def test_the_gate_is_a_file_beside_the_registry(load: Load, tmp_path: Path) -> None:
    (tmp_path / "questions.yaml").write_text("[]\n")

    index = load("index: {gate: questions.yaml, must_not_fall: 0.1}").registry.index

    assert (index.gate, index.must_not_fall) == (tmp_path / "questions.yaml", 0.1)


def test_without_a_word_about_it_nothing_replaced_is_kept_and_there_is_no_gate(load: Load) -> None:
    index = load("").registry.index

    assert (index.keep_retired_seconds, index.gate, index.must_not_fall) == (0, None, 0.02)
