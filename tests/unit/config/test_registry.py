from __future__ import annotations

import base64
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from reposync.config.document import RegistryErrors
from reposync.config.loading import LoadedRegistry, checked_repository, load_registry
from reposync.config.registry import Registry, ResolvedRepository
from reposync.config.settings import Configuration, Settings
from reposync.errors import ConfigError
from tests.unit.config.conftest import Complaints, Load

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


OLDER_YAML = ["yes", "no", "on", "off", "2024-01-01"]


def resolved(loaded: LoadedRegistry) -> dict[str, ResolvedRepository]:
    return {each.name: each for each in loaded.registry.resolved()}


def test_a_repository_has_its_own_values_the_defaults_and_what_its_source_needs(load: Load, tmp_path: Path) -> None:
    loaded = load(FULL, GITLAB_TOKEN="glpat-1", PASSWORD="p@ss/word")
    found = resolved(loaded)
    payments, handbook, here = found["payments"], found["handbook"], found["here"]

    assert {name: (each.kind, each.location) for name, each in found.items()} == {
        "payments": ("gitlab", "https://gitlab.example.com/platform/payments-api"),
        "handbook": ("git", "https://git.example.com/handbook.git"),
        "here": ("path", str(tmp_path)),
    }
    assert (payments.branch, payments.collection) == ("main", "shared")
    assert (payments.schedule, payments.timezone) == ("*/30 * * * *", "Europe/Berlin")
    assert (payments.chunk.size, payments.chunk.overlap, payments.max_file_bytes) == (5000, 500, 2000)
    assert (payments.include, payments.exclude) == (("*.py",), ("gen/",))
    assert (handbook.schedule, handbook.timezone) == ("0 */2 * * *", "UTC")
    assert (handbook.chunk.size, handbook.chunk.overlap) == (900, 180)
    assert (here.chunk.size, here.chunk.overlap, here.max_file_bytes) == (5000, 0, 5)
    assert (here.include, here.exclude, here.collection, here.path) == ((), ("*.md",), "own", tmp_path)
    server = payments.server
    assert server is not None and server.token is not None and handbook.password is not None
    assert (server.url, server.token.get_secret_value()) == ("https://gitlab.example.com", "glpat-1")
    assert (server.ca_file, server.connect_timeout_seconds) == (tmp_path / "certs/ca.pem", 10)
    assert (handbook.git, handbook.username) == ("https://git.example.com/handbook.git", "reader")
    assert handbook.password.get_secret_value() == "p@ss/word"
    assert not any(secret in repr(loaded) + repr(found) for secret in ("p@ss", "glpat-1"))
    assert loaded.document["gitlab"][0]["token"] == {"variable": "${GITLAB_TOKEN}"}
    assert handbook.definition["password"] == {"address": "https://reader:${PASSWORD}@git.example.com/handbook.git"}


@pytest.mark.parametrize(
    ("entry", "username", "password"),
    [
        ("git: https://x/y", None, None),
        ("git: 'https://${S}@x/y'", "oauth2", "hush"),
        ("git: 'https://user@x/y', password: '${S}'", "user", "hush"),
        ("git: 'https://:${S}@x/y'", "oauth2", "hush"),
        ("git: 'https://a%40b:${S}@x/y'", "a@b", "hush"),
        ("git: https://x/y, password: '${S}'", "oauth2", "hush"),
        ("git: https://x/y, username: me, password: '${S}'", "me", "hush"),
    ],
)
def test_credentials_of_a_git_address_are_taken_apart(
    entry: str, username: str | None, password: str | None, load: Load
) -> None:
    each = resolved(load(f"repositories:\n  - {{name: a, {entry}}}\n", S="hush"))["a"]

    assert (each.location, each.git) == ("https://x/y", "https://x/y")
    assert each.username == username
    assert (each.password.get_secret_value() if each.password else None) == password


def test_a_relative_path_starts_at_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A mounted ConfigMap is a symlink: the folder of the link counts.
    (tmp_path / "..data").mkdir()
    (tmp_path / "etc").mkdir()
    (tmp_path / "..data/registry.yaml").write_text(
        "repositories:\n  - {name: a, path: ../src/./x}\n  - {name: b, path: ~/x}\n"
    )
    (tmp_path / "etc/registry.yaml").symlink_to("../..data/registry.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ada")

    found = resolved(load_registry(Path("etc/registry.yaml"), {}))

    assert (found["a"].path, found["b"].location) == (tmp_path / "src/x", "/home/ada/x")


def test_no_file_is_an_empty_registry_with_the_defaults() -> None:
    loaded = load_registry(None, {})

    assert (loaded.registry, loaded.warnings, loaded.path) == (Registry(), (), None)
    assert (loaded.registry.defaults.chunk.size, loaded.registry.embedding.provider) == (7000, "static")


def test_a_token_for_a_server_on_this_machine_needs_no_encryption(load: Load) -> None:
    assert load("gitlab: [{name: a, url: 'http://localhost:8080', token: '${T}'}]\n", T="x" * 8).warnings == ()


def test_words_that_are_no_text_in_older_yaml_are_text(load: Load) -> None:
    branches = "".join(f"  - {{name: a{n}, path: ., branch: {each}}}\n" for n, each in enumerate(OLDER_YAML))

    assert [each.branch for each in load(f"repositories:\n{branches}").registry.repositories] == OLDER_YAML


def test_the_environments_qdrant_wins_over_the_file(load: Load) -> None:
    text = "qdrant: {url: 'http://file:6333', api_key: '${K:-}', replication_factor: 3}\n"

    registry = load(text, K="file-key").registry
    settings = Settings.from_environment({"REPOSYNC_QDRANT_URL": "https://env/", "REPOSYNC_QDRANT_API_KEY": "env-key"})
    from_file = Configuration(Settings.from_environment({}), registry).qdrant
    from_environment = Configuration(settings, registry).qdrant

    assert from_file.url == "http://file:6333"
    assert from_environment.url == "https://env"
    assert from_environment.api_key is not None
    assert from_environment.api_key.get_secret_value() == "env-key"
    assert from_environment.replication_factor == 3


@pytest.mark.parametrize(
    ("text", "searches"),
    [
        ("{}", 8),
        ("embedding: {provider: local}", 2),
        ("embedding: {provider: none}", 8),
        ("embedding: {provider: tei, url: 'http://localhost'}", 8),
        ("http: {searches: 5}", 5),
    ],
)
def test_the_transformer_does_few_searches_at_a_time(text: str, searches: int, load: Load) -> None:
    assert load(text).registry.searches == searches


def test_a_file_that_is_missing_or_a_folder_is_an_error_and_a_pipe_is_not(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no registry file .*gone\.yaml"):
        load_registry(tmp_path / "gone.yaml", {})
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_registry(tmp_path, {})
    read, write = os.pipe()
    os.write(write, b"\xef\xbb\xbfdefaults: {collection: piped}\r\n")  # with a byte order mark
    os.close(write)
    assert load_registry(Path(f"/dev/fd/{read}"), {}).registry.defaults.collection == "piped"
    os.close(read)


SERVER = "gitlab:\n  - {name: a, url: 'https://x', %s}\n"
GIT = "repositories:\n  - {name: a, git: %s}\n"
CLEAR_ADDRESS = "2:20: repositories[0].git holds credentials in the clear, or"
IN_THE_CLEAR = [
    (SERVER % "token: glpat-hush", "2:40: gitlab[0].token is in the clear: write ${GITLAB_TOKEN} and nothing else"),
    (SERVER % "webhook_secret: hush-hush-hush-hush", "2:49: gitlab[0].webhook_secret is in the clear: write ${GITLAB_"),
    (
        SERVER % "webhook_signing: whsec_hush",
        "2:50: gitlab[0].webhook_signing is in the clear: write ${GITLAB_WEBHOOK_",
    ),
    (
        SERVER % "token: '${T:-glpat-hush}'",
        "2:40: gitlab[0].token is in the clear: write ${T} and nothing else, and set",
    ),
    (SERVER % "token: '$${hush}${SET}'", "2:40: gitlab[0].token is in the clear: write ${SET} and nothing else"),
    ("qdrant:\n  api_key: $hush\n", "2:12: qdrant.api_key is in the clear: write ${REPOSYNC_QDRANT_API_KEY} and"),
    (
        "embedding: {provider: openai, model: m, api_key: hush}\n",
        "1:50: embedding.api_key is in the clear: write ${EMB",
    ),
    (GIT % "https://x/y, password: hush", "2:43: repositories[0].password is in the clear: write ${GIT_PASSWORD}"),
    (GIT % "'https://me:hush@x/y'", CLEAR_ADDRESS),
    (GIT % "'https://hush@x/y'", CLEAR_ADDRESS),
    (GIT % "'https://hush${SET}@x/y'", CLEAR_ADDRESS),
    (GIT % "'https://me:${P:-hush}@x/y'", CLEAR_ADDRESS),
    (GIT % "'${URL:-https://me:hush@x/y}'", CLEAR_ADDRESS),
]


@pytest.mark.parametrize(("text", "expected"), IN_THE_CLEAR)
def test_a_secret_in_the_clear_is_refused_with_what_to_write(text: str, expected: str, complaints: Complaints) -> None:
    (complaint,) = complaints(text, SET="x" * 8)

    assert complaint.startswith(expected)
    assert "hush" not in complaint


def test_the_value_of_a_variable_may_be_in_a_file(load: Load, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("glpat-1\n")
    text = SERVER % "token: '${T}'"

    loaded = load(text, T_FILE=str(tmp_path / "token"))

    token = loaded.registry.gitlab[0].token
    assert token is not None and token.get_secret_value() == "glpat-1"
    assert loaded.document["gitlab"][0]["token"] == {"variable": "${T}"}
    with pytest.raises(
        RegistryErrors, match=r":2:40: the environment variable T_FILE names a file that cannot be read"
    ):
        load(text, T_FILE=str(tmp_path / "gone"))


WARNINGS = [
    (SERVER % "token: '${EMPTY}'", "2:40: `token` is empty, because"),
    ("gitlab:\n  - {name: a, url: 'http://x', token: '${SET}'}\n", "2:20: the token is sent unencrypted over http://"),
    ("repositories:\n  - {name: a, git: 'http://u:${SET}@x/y'}\n", "2:20: the password is sent unencrypted over http:"),
    (SERVER % "ca_file: ca.pem", "2:42: there is no such file on this machine"),
    ("repositories:\n  - {name: a, path: gone}\n", "2:21: there is no such folder on this machine"),
]


@pytest.mark.parametrize(("text", "expected"), WARNINGS, ids=[expected for _, expected in WARNINGS])
def test_a_warning_has_its_place_and_no_secret(text: str, expected: str, load: Load) -> None:
    (warning,) = load(text, EMPTY="", SET="x" * 8).warnings

    shown = f"{warning.line}:{warning.column}: {warning.message}"
    assert shown.startswith(expected)
    assert "hush" not in shown


def test_a_repository_from_a_request_is_checked_like_one_in_the_file() -> None:
    registry = Registry.model_validate({"gitlab": [{"name": "main", "url": "https://x"}]})

    assert checked_repository(registry, {"name": "a", "gitlab": "main", "project": "g/p"}).location == "https://x/g/p"
    for schedule, cron in ((None, "0 */6 * * *"), ("never", "never")):  # null is a key that is left out
        assert checked_repository(registry, {"name": "a", "path": ".", "schedule": schedule}).schedule == cron
    with pytest.raises(ConfigError) as caught:
        checked_repository(registry, {"name": "a", "pth": ".", "schedule": "0 0 30 2 *", "chunk": {"siz": 1}})
    assert [line.split(";")[0] for line in str(caught.value).splitlines()] == [
        "exactly one of `gitlab`, `git` and `path` is required: none is given",
        "schedule '0 0 30 2 *': the day-of-month is wrong or never comes",
        "unknown key `siz` in chunk",
        "unknown key `pth`",
    ]
    with pytest.raises(ConfigError, match=r"no server in .* has the name 'mian'; did you mean `main`"):
        checked_repository(registry, {"name": "a", "gitlab": "mian", "project": "g/p"})
    with pytest.raises(ConfigError, match="overlap must be below size"):
        checked_repository(registry, {"name": "a", "path": ".", "chunk": {"overlap": 7000}})
    with pytest.raises(ConfigError) as secret:
        checked_repository(registry, {"name": "a", "git": "https://user:hush@x:y/z", "password": "hush"})
    assert "hush" not in str(secret.value)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("0s", 0), ("90m", 5400), ("24h", 86_400), ("7d", 604_800), ("1.5h", 5400), ("45", 45), ("'${KEEP}'", 60)],
)
def test_a_duration_is_written_with_its_unit_or_in_seconds(written: str, seconds: float, load: Load) -> None:
    registry = load(f"index: {{keep_retired: {written}}}", KEEP="1m").registry

    assert registry.index.keep_retired_seconds == seconds


@pytest.mark.parametrize(
    ("defaults", "own", "size", "overlap"),
    [
        ("", "", 7000, 1500),
        ("", "size: 2000", 2000, 400),
        ("", "size: 2000, overlap: 1500", 2000, 1500),
        ("size: 2000", "", 2000, 400),
        ("overlap: 700", "size: 2000", 2000, 400),
        ("size: 4000, overlap: 500", "size: 7000", 7000, 1400),
        ("size: 4000, overlap: 500", "overlap: 100", 4000, 100),
    ],
)
def test_the_default_overlap_depends_on_the_size(defaults: str, own: str, size: int, overlap: int, load: Load) -> None:
    registry = load(
        f"defaults: {{chunk: {{{defaults}}}}}\nrepositories:\n  - {{name: a, path: ., chunk: {{{own}}}}}\n"
    ).registry

    (one,) = registry.resolved()

    assert (one.chunk.size, one.chunk.overlap) == (size, overlap)


# Anchors, merge keys and `x-` keys, as in Compose files

SHARED = """\
x-docs: &docs
  schedule: never
  include: ["*.md"]
x-main: &main {<<: *docs, branch: "${BRANCH:-main}", schedule: "@daily"}
x-notes: {anything: [1, "${NOT_SET}"], shedule: yes}
repositories:
"""


@pytest.mark.parametrize(
    ("entry", "schedule", "branch", "include"),
    [
        ("<<: *docs", "never", None, ("*.md",)),
        ("<<: *docs, include: []", "never", None, ()),
        ("<<: [*docs, *main]", "never", "main", ("*.md",)),
        ("<<: [*main, *docs]", "0 0 * * *", "main", ("*.md",)),
        ("<<: &own {branch: x}, <<: *main", "0 0 * * *", "x", ("*.md",)),
        ("exclude: &x ['*.md'], include: *x", "0 */6 * * *", None, ("*.md",)),
    ],
)
def test_a_merge_key_adds_the_keys_that_an_entry_does_not_set(
    entry: str, schedule: str, branch: str | None, include: tuple[str, ...], load: Load
) -> None:
    (one,) = load(f"{SHARED}  - {{path: ., name: a, {entry}}}\n").registry.resolved()

    assert (one.schedule, one.branch, one.include) == (schedule, branch, include)


# `schedule: never`

ONE = "defaults: {schedule: '@daily', timezone: Europe/Berlin}\nrepositories:\n  - {name: one, path: .%s}\n"


@pytest.mark.parametrize("spelling", ["never", "Never", "null", "~", "", "off", "manual only", "on request", "'${N}'"])
def test_a_schedule_of_never_or_null_means_on_request_only(spelling: str, load: Load) -> None:
    (one,) = load(ONE % f", schedule: {spelling}", N="never").registry.resolved()
    (by_default, hourly) = load(
        f"defaults: {{schedule: {spelling}}}\nrepositories:\n"
        "  - {name: a, path: .}\n  - {name: b, path: .., schedule: hourly}\n",
        N="never",
    ).registry.resolved()

    assert (one.schedule, by_default.schedule, hourly.schedule) == ("never", "never", "0 * * * *")


def test_a_schedule_that_is_left_out_or_an_empty_variable_is_the_one_of_the_defaults(load: Load) -> None:
    for key in ("", ", schedule: '${NOT_SET:-}'"):
        (one,) = load(ONE % key).registry.resolved()
        assert (one.schedule, one.timezone) == ("0 0 * * *", "Europe/Berlin")


# Groups

GROUP = "gitlab: [{name: main, url: https://gitlab.example.com}]\ngroups:\n  - {gitlab: main, group: platform%s}\n"
FULL_GROUP = (
    ", include: ['platform/**'], exclude: [archive-*], archived: true, discover: daily at 4:00, schedule: every 2 hours"
    ", timezone: Europe/Berlin, collection: ours, chunk: {size: 900}, max_file_bytes: 5000"
)


def test_a_thousand_repositories_with_one_default_are_synced_at_different_minutes(load: Load) -> None:
    entries = [f"  - {{name: team/service-{number}, path: .}}" for number in range(1_000)]
    text = "\n".join(["defaults: {schedule: H */6 * * *}", "repositories:", *entries])

    registry = load(text).registry

    schedules = Counter(repository.schedule for repository in registry.resolved())
    assert schedules.keys() == {f"{minute} */6 * * *" for minute in range(60)}
    assert max(schedules.values()) < 3 * 1_000 / 60
    assert registry.defaults.schedule == "H */6 * * *"


def test_the_defaults_of_a_group(load: Load) -> None:
    (group,) = load(GROUP % ", archived: '${A}', schedule: '${S:-}'", A="false").registry.groups
    never = load(GROUP % ", schedule: never").registry

    assert checked_repository(never, never.groups[0].definition("g/p", "g/p")).schedule == "never"
    assert never.groups[0].discover == "*/30 * * * *"
    assert (group.discover, group.archived, group.include, group.exclude) == ("*/30 * * * *", False, (), ())
    assert group.definition("p/a", "p/a") == {"name": "p/a", "gitlab": "main", "project": "p/a"}


def test_projects_of_a_group_get_its_values_and_the_rest_from_the_defaults(load: Load) -> None:
    loaded = load(GROUP % FULL_GROUP + "defaults: {chunk: {overlap: 100}, exclude: ['*.snap']}\n")

    definition = loaded.registry.groups[0].definition("platform/a", "platform/a")
    project = checked_repository(loaded.registry, json.loads(json.dumps(definition)))

    assert definition["chunk"] == {"size": 900}
    assert (project.name, project.project, project.collection) == ("platform/a", "platform/a", "ours")
    assert (project.schedule, project.timezone) == ("0 */2 * * *", "Europe/Berlin")
    assert (project.chunk.size, project.chunk.overlap, project.max_file_bytes) == (900, 180, 5000)
    assert (project.include, project.exclude) == ((), ("*.snap",))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (", discover: null", "groups[0].discover must be text"),
        (", discover: '0 0 30 2 *'", "the day-of-month is wrong or never comes"),
        (", schedule: hourl", "groups[0]: schedule 'hourl': cannot be read"),
        (", archived: 'true'", "groups[0].archived must be true or false"),
        (", branch: main", "unknown key `branch` in groups[0]"),
        (", chunk: {overlap: 7000}", "groups[0].chunk.overlap: overlap must be below size: 7000 is not below 7000"),
        (", chunk: {sise: 1000}", "unknown key `sise` in groups[0].chunk; did you mean `size`?"),
    ],
)
def test_a_mistake_in_a_group_is_named(complaints: Complaints, keys: str, expected: str) -> None:
    (complaint,) = complaints(GROUP % keys)
    assert complaint.startswith("3:")
    assert expected in complaint


def test_one_group_under_two_spellings_is_a_mistake_and_one_path_on_two_servers_is_not(
    complaints: Complaints, load: Load
) -> None:
    text = (
        "gitlab: [{name: main, url: https://x}, {name: same, url: https://x/}, {name: other, url: https://y}]\n"
        "groups:\n  - {gitlab: main, group: platform}\n  - {gitlab: %s, group: %s}\n"
    )

    for second in (("main", "Platform"), ("same", "platform")):
        (complaint,) = complaints(text % second)
        assert complaint.endswith("is there already: groups[0]")
    assert len(load(text % ("other", "platform")).registry.groups) == 2


def test_secrets_of_webhooks_come_from_variables_and_are_shown_to_nobody(load: Load) -> None:
    secret, signing = "a-secret-of-webhooks-1", "whsec_" + base64.b64encode(b"\xff" * 32).decode()
    text = SERVER % "webhook_secret: '${SECRET}', webhook_signing: '${SIGNING}'"
    loaded = load(text, SECRET=f"{secret}\n", SIGNING=f"{signing}\n")
    configuration = Configuration(Settings.from_environment({}), loaded.registry)

    assert loaded.warnings == ()
    assert {secret, signing} <= set(configuration.secrets())
    shown = repr(loaded) + json.dumps(loaded.document)
    assert secret not in shown
    assert signing not in shown
    none = load(SERVER % "webhook_secret: '${SECRET:-}', webhook_signing: null").registry.gitlab[0]
    assert (none.webhook_secret, none.webhook_signing) == (None, None)
