"""Each kind of mistake in the registry file: one sentence, with its line and column. Editors see many of them, too."""

from __future__ import annotations

import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.config.document import RegistryErrors
from tests.unit.config.conftest import Complaints, Load

ONE = "repositories:\n  - {name: one, path: ., %s}\n"
REPOSITORY = "repositories:\n  - {name: a, %s}\n"
SERVER = "gitlab:\n  - {name: a, %s}\n"
ON_SERVER = "gitlab: [{name: m, url: https://x}]\nrepositories:\n  - {name: a, %s}\n"
EMBEDDING = "embedding: {%s}\n"
ON_OLLAMA = EMBEDDING % "provider: ollama, url: 'http://x', model: m, %s"
INDEX = "index: {%s}\n"

SEEN = "by the schema, too"

NOT_YAML = [
    ("repositories: [a\n", "1:15:"),
    ("repositories:\n\t- {name: a, path: .}\n", "2:1:"),
    ("gitlab:\n  - name: 'a\n    url: b\n", "2:11:"),
    ("defaults: \x01\n", "1:11:"),
    ("---\n{}\n---\n{}\n", "3:1:"),
    ("defaults:\n  include: [*.py]\n", "2:13:"),
    ("qdrant: {url: ${X}}\n", "1:16:"),
]
MISTAKES = [
    *((text, f"{place} not YAML: ") for text, place in NOT_YAML),
    # Syntax
    ("defaults:\n  exclude: [!a , b]\n", "2:13: a value that starts with ! is a tag"),
    ("defaults: !!python/object:x {}\n", "1:11: a value that starts with ! is a tag"),
    ("repositories: &a [*a]\n", "1:15: an alias to something that contains it", SEEN),
    (f"defaults: {'[' * 30}\n", "1:30: values are nested more than 20 deep"),
    ("qdrant: {}\ndefaults: {}\nqdrant: {}\n", "3:1: `qdrant` is there already, in line 1"),
    ("? [a]\n: b\n", "1:3: a key must be plain text"),
    (f"defaults: {{max_file_bytes: {'9' * 5000}}}\n", "1:28: a number that cannot be read"),
    # Variables
    ("repositories:\n  - {name: a, git: '${MISSING}'}\n", "2:20: the environment variable MISSING is not set"),
    ("qdrant:\n  url: ${NO URL}\n", "2:8: `${` starts a reference that cannot be"),
    ("qdrant:\n  url: https://${X\n", "2:8: `${` starts a reference that cannot be"),
    ('qdrant:\n  url: "${A:-${B}}"\n', "2:8: `${` starts a reference"),
    # Keys
    ("repositorys: []\n", "1:1: unknown key `repositorys`; did you mean `repositories`?", SEEN),
    (ONE % "shedule: '@daily'", "2:26: unknown key `shedule` in repositories[0]; did you mean `schedule`?", SEEN),
    (ONE % "chunk: {siez: 3}", "2:34: unknown key `siez` in repositories[0].chunk; did you mean `size`?", SEEN),
    (
        ONE % "cron: '@daily'",
        "2:26: unknown key `cron` in repositories[0]; write `schedule`, which takes a crontab, ",
        SEEN,
    ),
    (
        ONE % "url: https://x/y",
        "2:26: unknown key `url` in repositories[0]; write `git` for an https:// address, or `g",
        SEEN,
    ),
    ("daemon: {cron: 1}\n", "1:10: unknown key `cron` in daemon; known here: concurrency, ", SEEN),
    ("qdrant: {zzz: 1}\n", "1:10: unknown key `zzz` in qdrant; known here: api_key, ", SEEN),
    (ONE % "<<: x", "2:26: `<<` takes an alias of a different mapping (`<<: *name`), or a list"),
    ("gitlab:\n  - {name: a}\n", "2:5: gitlab[0]: `url` is missing", SEEN),
    ("x-a: &a {max_file_bytes: 0}\n" + ONE % "<<: *a", "1:26: repositories[0].max_file_bytes must be at least 1", SEEN),
    (ONE % "<<: &a {branch: '${NO}'}", "2:42: the environment variable NO is not set"),
    ("repositories:\n  - {path: .}\n", "2:5: repositories[0]: `name` is missing", SEEN),
    ("groups: [{gitlab: m}]\n", "1:10: groups[0]: `group` is missing", SEEN),
    # Types
    ("qdrant: {on_disk_payload: 1}\n", "1:27: qdrant.on_disk_payload must be true or", SEEN),
    (ONE % "schedule: false", "2:36: repositories[0].schedule must be a schedule; write `never`", SEEN),
    ("[]\n", "1:1: the file must be a mapping of keys to values", SEEN),
    ("defaults: hello\n", "1:11: defaults must be a mapping of keys to values", SEEN),
    (ONE % "include: '*.py'", "2:35: repositories[0].include must be a list", SEEN),
    (ONE % "branch: 1.10", "2:34: repositories[0].branch must be text: write it in quotes", SEEN),
    (ONE % "max_file_bytes: '9'", "max_file_bytes must be a whole number, without quotes", SEEN),
    ("defaults: {collection: null}\n", "1:24: defaults.collection must be text", SEEN),
    (ONE % 'branch: "a\\nb"', "repositories[0].branch must not contain a line break", SEEN),
    (ONE % 'branch: "\\ud800"', "repositories[0].branch must not contain a line break or another control"),
    (ONE % 'include: ["\\ud800"]', "repositories[0].include[0] is not valid Unicode text"),
    # Numbers
    (SERVER % "url: 'https://x', read_timeout_seconds: 0", "read_timeout_seconds must be more than 0", SEEN),
    (ONE % "chunk: {size: 99}", "2:40: repositories[0].chunk.size must be at least 100", SEEN),
    ("defaults: {chunk: {size: 50001}}\n", "1:26: defaults.chunk.size must be at most 50,000", SEEN),
    ("defaults: {chunk: {size: 500, overlap: 500}}\n", "1:40: defaults.chunk.overlap must be below `size`: 500 is not"),
    (ONE % "chunk: {overlap: 7001}", "2:43: repositories[0].chunk.overlap: overlap must be below size: 7001 is not"),
    ("qdrant: {replication_factor: 2, write_consistency_factor: 3}\n", "1:59: qdrant.write_consistency_factor must be"),
    (INDEX % "keep_retired: '24'", "1:23: index.keep_retired must be a number of sec", SEEN),
    (INDEX % "keep_retired: 1 hour", "1:23: index.keep_retired must be a number of sec", SEEN),
    (
        INDEX % "gate: questions.yaml",
        "1:9: unknown key `gate` in index: it was removed, delete it; a new version",
        SEEN,
    ),
    (INDEX % "must_not_fall: 0.1", "1:9: unknown key `must_not_fall` in index: it was removed, delete it; it", SEEN),
    # Patterns
    (ONE % "include: ['']", "2:36: repositories[0].include[0] matches nothing: it is empty"),
    (ONE % "exclude: [a, '[b']", "2:39: repositories[0].exclude[1] matches nothing: a ["),
    (ONE % "include: [./src]", "repositories[0].include[0] matches nothing: paths"),
    (ONE % f"exclude: [{'a' * 1001}]", "exclude[0] must have at most 1,000 characters", SEEN),
    (ONE % f"include: [{'a, ' * 1001}]", "include must be at most 1,000 patterns with 50,000 chara"),
    (f"defaults:\n  exclude: [{', '.join(['a' * 1000] * 51)}]\n", "2:12: defaults.exclude must be at most 1,000"),
    # Names
    (f"{REPOSITORY % 'path: .'}  - {{name: a, path: x}}\n", "3:12: repositories[1].name: 'a' is there already"),
    (f"{SERVER % 'url: https://x'}  - {{name: a, url: https://y}}\n", "3:12: gitlab[1].name: 'a' is there already"),
    *(
        (f"repositories:\n  - {{name: {name}, path: .}}\n", "2:12: repositories[0].name must be 1 to 200", SEEN)
        for name in ("a b", "-a", "../a", "a" * 201)
    ),
    (ONE % "collection: a/b", "2:38: repositories[0].collection must be 1 to 255 letters", SEEN),
    (ONE % "branch: a..b", "2:34: repositories[0].branch is not a branch name", SEEN),
    (
        "defaults: {schedule: whenever}\n",
        "1:22: defaults: schedule 'whenever': cannot be read; write for example",
        SEEN,
    ),
    ("defaults: {schedule: 5}\n", "1:22: defaults.schedule must be text", SEEN),
    (ONE % "schedule: 0 0 1 H *", "2:36: repositories[0]: schedule '0 0 1 H *': `H` cannot stand for a month"),
    (ONE % 'schedule: "0 0 30 2 *"', "2:36: repositories[0]: schedule '0 0 30 2 *': the day-of-month is wrong"),
    ("defaults:\n  timezone: Europe/Berlni\n", "2:13: defaults: unknown time zone 'Europe/Berlni'; did you mean `Eur"),
    # Sources
    (REPOSITORY % "gitlab: m, project: g/p", "2:23: repositories[0].gitlab: no server in the top-level `gitlab`", SEEN),
    ("groups: [{gitlab: m, group: g}]\n", "1:19: groups[0].gitlab: no server in the top-level `gitlab`", SEEN),
    (REPOSITORY % "git: 'git@host:x/y.git'", "2:20: repositories[0].git must start with https://", SEEN),
    (ON_SERVER % "gitlab: mm, project: g/p", "top-level `gitlab` has the name 'mm'; did you mean `m`?"),
    (ON_SERVER % "gitlab: mm, project: g/p", "3:23: repositories[0].gitlab: no server in the top-level `gitlab`"),
    (
        "repositories:\n  - {name: a}\n",
        "2:5: repositories[0]: exactly one of `gitlab`, `git` and `path` is required",
        SEEN,
    ),
    (
        ONE % "git: https://x/y",
        "2:23: repositories[0]: exactly one of `gitlab`, `git` and `path` is required: not",
        SEEN,
    ),
    (ON_SERVER % "gitlab: m", "3:5: repositories[0]: `gitlab` requires `project`", SEEN),
    (REPOSITORY % "project: g/p", "2:5: repositories[0]: `project` requires `gitlab`", SEEN),
    (
        ON_SERVER % "gitlab: m, project: 'https://x/g/p'",
        "3:35: repositories[0].project must be the path of a project",
        SEEN,
    ),
    (REPOSITORY % "git: 'ssh://git@x/y'", "2:20: repositories[0].git must start with https://", SEEN),
    (REPOSITORY % "git: 'https://u:${P}@x/y', password: '${P}'", "2:20: repositories[0].git holds credentials in the"),
    (ONE % "password: '${P}'", "2:36: repositories[0].password is for `git` only"),
    (SERVER % "url: 'https://x:99999'", "2:20: gitlab[0].url is not an address"),
    (SERVER % "url: https://x/api/v4", "2:20: gitlab[0].url must be the address of GitLab itself"),
    (SERVER % "url: 'https://u:p@x'", "gitlab[0].url must not hold cred"),
    (SERVER % "url: gitlab.example.com", "gitlab[0].url must start with", SEEN),
    (SERVER % "url: 'https://x', token: '${SPACED}'", "must be printable ASCII"),
    (SERVER % "url: 'https://x', webhook_secret: '${SHORT}'", "webhook_secret must have at least 16 characters"),
    (SERVER % "url: 'https://x', webhook_signing: '${SIGNING}'", "must be whsec_ and 32 bytes"),
    # Services
    ("qdrant: {quantization: int4}\n", "1:24: qdrant.quantization must be", SEEN),
    (EMBEDDING % "provider: olama", "'ollama' or 'none'; did you mean `ollama`?", SEEN),
    (EMBEDDING % "provider: openai, api_key: '${P}'", "model is required for provider openai", SEEN),
    (EMBEDDING % "provider: openai, model: m", "1:12: embedding.api_key is required for provider openai without"),
    (EMBEDDING % "provider: tei", "1:12: embedding.url is required for provider tei", SEEN),
    (EMBEDDING % "provider: tei, url: 'http://x', query_task: q", "query_task has no meaning for provider tei"),
    # Access
    ("http: {access: everybody}\n", "1:16: http.access must be 'tokens' or 'gitlab'"),
    ("http: {rights: {fresh_seconds: 61}}\n", "1:32: http.rights.fresh_seconds must be at most 60"),
    (ONE % "readers: [a//b]", "repositories[0].readers[0] must be the path of a group, everybody, or project: with"),
    (ONE % "readers: everybody", "repositories[0].readers must be a list"),
    (
        ON_SERVER % "gitlab: m, project: g/p, readers: [everybody]",
        "repositories[0].readers cannot name 'everybody': GitLab decides who reads its projects",
    ),
    (EMBEDDING % "query_prefix: ''", "1:27: embedding.query_prefix has no meaning for provider static"),
    (ON_OLLAMA % 'query_prefix: "a\\x07"', "embedding.query_prefix must not contain a line break or another control"),
    (
        ON_OLLAMA % f"document_prefix: {'a' * 1001}",
        "embedding.document_prefix must have at most 1,000 characters",
        SEEN,
    ),
    (EMBEDDING % "url: 'http://x'", "1:18: embedding.url has no meaning for provider static"),
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [(text, expected) for text, expected, *_ in MISTAKES],
    ids=[expected for _, expected, *_ in MISTAKES],
)
def test_a_mistake_is_named_with_its_place(text: str, expected: str, complaints: Complaints) -> None:
    found = complaints(text, P="p", SPACED="a b", SHORT="fifteen-letters", SIGNING="whsec_c2hvcnQ=")

    assert len(found) == 1, found
    assert found[0].startswith(expected) if expected[0].isdecimal() else expected in found[0], found


def test_all_mistakes_are_reported_at_once_in_the_order_of_the_file(complaints: Complaints) -> None:
    text = """\
gitlab:
  - {name: main, url: "ftp://x", tokn: "${GITLAB_TOKEN}"}
defaults: {shedule: "@daily", timezone: Mars}
repositories:
  - {name: a, gitlab: main, project: g/p, schedule: "0 0 30 2 *"}
  - {name: a, path: ., max_file_bytes: 0}
  - {name: b, path: ., path: x}
embedding: {provider: lokal}
"""

    found = complaints(text)

    places = [each.split(" ")[0] for each in found]
    assert places == ["2:23:", "2:34:", "2:40:", "3:12:", "3:41:", "5:53:", "6:40:", "7:24:", "8:23:"]


def test_contradictions_between_valid_entries_are_reported_at_once(complaints: Complaints) -> None:
    text = "repositories:\n  - {name: a, path: .}\n  - {name: a, gitlab: m, project: g/p, chunk: {overlap: 7000}}\n"

    assert [each.split(" ")[0] for each in complaints(text)] == ["3:12:", "3:23:", "3:57:"]


def test_hostile_files_are_refused(complaints: Complaints) -> None:
    aliases = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    aliases += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    merges = ["x-a0: &a0 {k: 1}"]
    merges += [f"x-a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 9)]
    merges += ["repositories: [{<<: *a8}]"]

    assert complaints(b"defaults: {}\n# caf\xe9\n") == ["2:6: not UTF-8 text: save the file as UTF-8"]
    assert complaints(b"#" * 1_000_001) == ["1:1: the file is larger than 1,000,000 bytes"]
    assert "more than 100,000 values" in complaints("\n".join(aliases))[0]
    assert "more than 100,000 values" in complaints("\n".join(merges))[0]


EVERY_VALUE = """\
gitlab:
  - {{name: {0}, url: {0}, token: {0}, ca_file: {0}, connect_timeout_seconds: {0}, read_timeout_seconds: {0}}}
  - {{name: main, url: "https://user:{1}@x", token: {0}}}
defaults: {{schedule: {0}, timezone: {0}, collection: {0}, chunk: {{size: {0}, overlap: {0}}}, include: [{0}]}}
repositories:
  - {{name: {0}, gitlab: {0}, project: {0}, git: {0}, path: {0}, username: {0}, password: {0}, branch: {0}}}
  - {{name: {0}, git: "https://{1}:{1}@x:{1}/y?{1}", schedule: "0 0 * * {1}", max_file_bytes: {0}}}
  - {{name: a, git: "https://{1}", schedule: "every {1}", timezone: "Europe/{1}", collection: {0}}}
  - {{name: b, git: "https://u:{1}@x/y", password: {0}, exclude: ["[{1}"]}}
  - {0}
groups: [{{gitlab: {0}, group: {0}, include: [{0}], exclude: [{0}]}}]
embedding: {{provider: {0}, url: {0}, model: {0}, dimensions: {0}, api_key: {0}, window: {0}, batch: {0}}}
qdrant: {{url: {0}, api_key: {0}, timeout_seconds: {0}, quantization: {0}, on_disk_payload: {0}}}
"""
CONTRADICTIONS = (
    "gitlab: [{{name: {0}, url: https://x}}, {{name: {0}, url: https://y}}]\ngroups: [{{gitlab: b, group: a}}]\n"
)


@given(middle=st.text(st.sampled_from("ZQ7 ,:/@?#-*[](){}%$'\"\\\n\tüñ"), max_size=150))
def test_no_value_of_a_variable_is_in_any_error(load: Load, middle: str) -> None:
    for text, secret in ((EVERY_VALUE, f"ZQX{middle}XQZ"), (CONTRADICTIONS, "zqxxqz")):
        with pytest.raises(RegistryErrors) as caught:
            load(text.format('"${SECRET}"', "${SECRET}"), SECRET=secret)

        shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
        assert "zqx" not in shown.lower()
        assert "xqz" not in shown.lower()


def test_no_secret_in_the_clear_is_in_any_error(complaints: Complaints) -> None:
    text = """\
gitlab:
  - {name: main, url: "https://user:glpat-hush@x", token: ["glpat-hush"]}
  - {name: other, url: "https://x", token: "glpat-hush with a space", webhook_secret: glpat-hush}
repositories:
  - {name: a, git: "https://user:glpat-hush@x:port/y"}
  - {name: b, git: "https://glpat-hush@x/y?", password: {a: glpat-hush}}
  - {name: c, git: "ssh://user:glpat-hush@x/y"}
  - {name: d, git: "https://u:glpat-hush@x/y", password: glpat-hush}
embedding: {provider: openai, api_key: 5, url: "https://glpat-hush@x"}
qdrant: {url: "https://key:glpat-hush@x", api_key: "glpat-hush\\n1"}
"""

    found = complaints(text)

    assert len(found) >= 10
    assert "hush" not in "".join(found)


@pytest.mark.parametrize(
    "text",
    ["token: *hush\n", "token: 'hush\n", "token: hush: x\n", "token: @hush\n", "a: [hush\n", "token: hush\n - x\n"],
)
def test_the_parsers_messages_which_quote_the_file_are_not_shown(text: str, complaints: Complaints) -> None:
    assert "hush" not in "".join(complaints(text))


@given(st.one_of(st.binary(max_size=60), st.text("ab:- \n\t[]{}\"'#&*!|>%@`$?,\\", max_size=40).map(str.encode)))
def test_every_error_has_a_place(load: Load, content: bytes) -> None:
    try:
        load(content)
    except RegistryErrors as error:
        assert all(problem.line >= 1 and problem.column >= 1 for problem in error.problems)


@pytest.mark.parametrize(
    ("http", "problem"),
    [
        ("access: gitlab", "is required with `access: gitlab`"),
        ("gitlab: main", "is required with `access: gitlab`, and has no meaning without it"),
        ("access: gitlab, gitlab: mian", "no server in the top-level `gitlab` has the name 'mian'"),
        ("sign_in: {client_id: a, client_secret: '${SECRET}'}", "has no meaning without `access: gitlab`"),
        (
            "access: gitlab, gitlab: main, sign_in: {client_id: a, client_secret: '${SECRET}'}",
            "needs `public_url`: GitLab and agents lead browsers there",
        ),
        ("access: gitlab, gitlab: main, public_url: 'https://x', sign_in: {client_id: a}", "is required"),
        ("public_url: 'http://reposync.example.com'", "must start with https://, except on loopback"),
    ],
)
def test_a_sign_in_needs_its_server_and_its_own_address(complaints: Complaints, http: str, problem: str) -> None:
    found = complaints(
        f"gitlab: [{{name: main, url: 'https://gitlab.example.com'}}]\nhttp: {{{http}}}\n", SECRET="gloas"
    )
    assert [problem in each for each in found] == [True], found
