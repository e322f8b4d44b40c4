"""Each kind of mistake in the registry file: one sentence, at its line and column."""

from __future__ import annotations

import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.config.problems import RegistryErrors
from tests.unit.config.conftest import Complaints, Load

ONE = "repositories:\n  - {name: one, path: ., %s}\n"
EMBEDDING = "embedding: {%s}\n"

MISTAKES = {
    # The text of the file
    "a list that is never closed": ("repositories: [a\n", "1:15: not YAML: a bracket is opened here and never"),
    "a tab": ("repositories:\n\t- {name: a, path: .}\n", "2:1: not YAML: a tab; indent with spaces"),
    "a quote that is never closed": ("gitlab:\n  - name: 'a\n    url: b\n", "2:11: not YAML: a quote is opened"),
    "a colon in a plain text": ("defaults: a: b\n", "1:12: not YAML: a second `: ` in one line"),
    "a character that starts no value": ("defaults: {collection: %x}\n", "1:24: not YAML: a value must not start"),
    "a control character": ("defaults: \x01\n", "1:11: not YAML: a control character"),
    "wrong indentation": ("repositories:\n  - name: a\n path: .\n", "3:2: not YAML: wrong indentation"),
    "a second document": ("---\n{}\n---\n{}\n", "3:1: a second document"),
    "an older YAML": ("%YAML 1.1\n---\n{}\n", "1:1: only YAML 1.2 is read"),
    "an unquoted star": ("defaults:\n  include: [*.py]\n", "2:13: a value that starts with * is an alias in YAML"),
    "an unquoted exclamation mark": ("defaults:\n  exclude: [!a , b]\n", "2:13: a value that starts with ! is a tag"),
    "an unquoted exclamation mark before a bracket": (
        "defaults:\n  exclude: [!a]\n",
        "2:12: not YAML: a bracket is opened here and never closed; a value in it that starts with ! needs quotes",
    ),
    "an unknown tag": ("defaults: !!python/object:x {}\n", "1:11: a value that starts with ! is a tag"),
    "an alias to what is around it": ("repositories: &a [*a]\n", "1:15: an alias to something that contains it"),
    "too many levels": (f"defaults: {'[' * 30}\n", "1:30: values are nested more than 20 deep"),
    "a key twice": ("qdrant: {}\ndefaults: {}\nqdrant: {}\n", "3:1: `qdrant` is there already, in line 1"),
    "a key that is no text": ("? [a]\n: b\n", "1:3: a key must be plain text"),
    "a variable without quotes in braces": ("qdrant: {url: ${X}}\n", "write a ${VARIABLE} in quotes"),
    "a number of 5000 digits": (f"defaults: {{max_file_bytes: {'9' * 5000}}}\n", "1:28: a number that cannot be read"),
    # Variables
    "a missing variable": ("qdrant:\n  url: ${NO_URL}\n", "2:8: the environment variable NO_URL is not set"),
    "a reference that cannot be read": ("qdrant:\n  url: ${NO URL}\n", "2:8: `${` starts a reference that cannot be"),
    "a reference that is not closed": ("qdrant:\n  url: https://${X\n", "2:8: `${` starts a reference that cannot be"),
    "a default with a variable in it": ('qdrant:\n  url: "${A:-${B}}"\n', "2:8: `${` starts a reference"),
    # Keys
    "an unknown section": ("repositorys: []\n", "1:1: unknown key `repositorys`; did you mean `repositories`?"),
    "an unknown key": (ONE % "shedule: '@daily'", "2:26: unknown key `shedule` in repositories[0]; did you mean `sch"),
    "an unknown key deep inside": (ONE % "chunk: {siez: 3}", "2:34: unknown key `siez` in repositories[0].chunk; did"),
    "an unknown key near to none": ("qdrant: {zzz: 1}\n", "1:10: unknown key `zzz` in qdrant; known here: api_key, "),
    "a merge key of a text": (ONE % "<<: x", "2:26: `<<` takes an alias of another mapping (`<<: *name`), or a list"),
    "a merge key of itself": (
        "repositories:\n  - &a {name: a, path: ., <<: *a}\n",
        "2:27: `<<` takes an alias of another",
    ),
    "a merge key in quotes": (ONE % "'<<': {}", "2:26: unknown key `<<…` in repositories[0]; in quotes it is no merge"),
    "an extension that is not at the top": (
        ONE % "x-a: 1",
        "unknown key `x-a` in repositories[0]; a key that starts wi",
    ),
    # Keys and words of other programs
    "cron of the defaults": (
        "defaults: {cron: x}\n",
        "1:12: unknown key `cron` in defaults; write `schedule`, which tak",
    ),
    "cron of a repository": (ONE % "cron: '@daily'", "2:26: unknown key `cron` in repositories[0]; write `schedule`"),
    "an interval": (ONE % "interval: 10m", "2:26: unknown key `interval` in repositories[0]; write `schedule`"),
    "repos": ("repos: []\n", "1:1: unknown key `repos`; write `repositories`: a list of entries"),
    "projects": ("projects: [a/b]\n", "1:1: unknown key `projects`; write `repositories`: a list of entries"),
    "the url of a repository": (
        "repositories:\n  - {name: a, url: https://x/y}\n",
        "2:15: unknown key `url` in repositories[0]; write `git` for the https:// address of a repository, or",
    ),
    "the url of a project on a server that is listed": (
        "gitlab: [{name: main, url: https://x/}]\nrepositories:\n  - {name: a, url: https://x/g/sub/p.git}\n",
        "3:15: unknown key `url` in repositories[0]; write `gitlab: main` and `project: g/sub/p`",
    ),
    "yes where true is asked for": (
        "qdrant: {on_disk_payload: yes}\n",
        "1:27: qdrant.on_disk_payload must be true or false: write true (yes, no, on and off are text in YAML 1.2)",
    ),
    "off where false is asked for": ("qdrant: {on_disk_payload: Off}\n", "must be true or false: write false (yes, no"),
    "false for a schedule": (
        ONE % "schedule: false",
        "2:36: repositories[0].schedule must be a schedule; write `never`",
    ),
    "a missing key": ("gitlab:\n  - {name: a}\n", "2:5: gitlab[0]: `url` is missing"),
    # Kinds of values
    "a list where a mapping is asked for": ("[]\n", "1:1: the file must be a mapping of keys to values"),
    "a text where a mapping is asked for": ("defaults: hello\n", "1:11: defaults must be a mapping of keys to values"),
    "a text where a list is asked for": (ONE % "include: '*.py'", "2:35: repositories[0].include must be a list"),
    "a mapping where a list is asked for": ("repositories: {name: a}\n", "1:15: repositories must be a list"),
    "a text where an entry is asked for": ("repositories:\n  - one\n", "2:5: repositories[0] must be a mapping"),
    "a number where text is asked for": (ONE % "branch: 1.10", "2:34: repositories[0].branch must be text: write it i"),
    "a text where a number is asked for": (ONE % "max_file_bytes: '9'", "max_file_bytes must be a whole number, with"),
    "true where a number is asked for": (ONE % "max_file_bytes: true", "max_file_bytes must be a whole number"),
    "a fraction where a whole number is asked for": (ONE % "max_file_bytes: 1.5", "must be a whole number"),
    "a number where true is asked for": (
        "qdrant: {on_disk_payload: 1}\n",
        "1:27: qdrant.on_disk_payload must be true or",
    ),
    "null where a value is needed": ("defaults: {collection: null}\n", "1:24: defaults.collection must be text"),
    "a control character in a text": (ONE % 'branch: "a\\nb"', "repositories[0].branch must not hold a line break"),
    "half a character": (ONE % 'branch: "\\ud800"', "repositories[0].branch is not valid Unicode text"),
    # Numbers
    "a chunk too small": (ONE % "chunk: {size: 99}", "2:40: repositories[0].chunk.size must be at least 100"),
    "a chunk too large": ("defaults: {chunk: {size: 50001}}\n", "1:26: defaults.chunk.size must be at most 50,000"),
    "an overlap below 0": ("defaults: {chunk: {overlap: -1}}\n", "1:29: defaults.chunk.overlap must be at least 0"),
    "an overlap as large as the chunk": (
        "defaults:\n  chunk: {size: 500, overlap: 500}\n",
        "2:31: defaults.chunk.overlap must be below `size`: 500 is not below 500",
    ),
    "an overlap above the defaults' size": (
        ONE % "chunk: {overlap: 7001}",
        "2:43: repositories[0].chunk.overlap: overlap must be below size: 7001 is not below 7000 (which comes f",
    ),
    "a time-out of 0": ("qdrant: {timeout_seconds: 0}\n", "1:27: qdrant.timeout_seconds must be more than 0"),
    "more confirmations than replicas": (
        "qdrant: {replication_factor: 2, write_consistency_factor: 3}\n",
        "1:59: qdrant.write_consistency_factor must be at most `replication_factor`, which is 2",
    ),
    # Schedules; more of them in test_schedule.py
    "a cron that never fires": (ONE % 'schedule: "0 0 30 2 *"', "2:36: repositories[0]: schedule '0 0 30 2 *': it nev"),
    "a cron that is none": ("defaults:\n  schedule: often\n", "2:13: defaults: schedule 'often': cannot be read"),
    "an unknown time zone": (
        "defaults:\n  timezone: Europe/Berlni\n",
        "2:13: defaults: unknown time zone 'Europe/Berlni'; did you mean `Europe/Berlin`?",
    ),
    # Patterns
    "an empty pattern": (ONE % "include: ['']", "2:36: repositories[0].include[0] matches nothing: it is empty"),
    "a comment as pattern": (ONE % "exclude: ['#a']", "2:36: repositories[0].exclude[0] matches nothing: it is empty"),
    "a range that is not closed": (ONE % "exclude: [a, '[b']", "2:39: repositories[0].exclude[1] matches nothing: a ["),
    "a class of characters that is none": (ONE % "exclude: ['[[:no:]]']", "repositories[0].exclude[0] matches nothing"),
    "a backslash at the end": (ONE % "exclude: ['a\\']", "repositories[0].exclude[0] matches nothing: a [ range"),
    "a pattern that starts with a dot": (ONE % "include: [./src]", "repositories[0].include[0] matches nothing: paths"),
    "a pattern that leaves the repository": (ONE % "include: [../x]", "repositories[0].include[0] matches nothing"),
    "a pattern of slashes": (ONE % "include: ['//']", "repositories[0].include[0] matches nothing"),
    "a pattern that is too long": (ONE % f"exclude: [{'a' * 1001}]", "exclude[0] must have at most 1,000 characters"),
    "too many patterns": (
        ONE % f"include: [{'a, ' * 1001}]",
        "include must be at most 1,000 patterns with 50,000 chara",
    ),
    "patterns that are too long together": (
        f"defaults:\n  exclude: [{', '.join(['a' * 1000] * 51)}]\n",
        "2:12: defaults.exclude must be at most 1,000 patterns with 50,000 characters in all: it is 51 with 51,000",
    ),
    # Names
    "a name twice": (
        "repositories:\n  - {name: a, path: .}\n  - {name: b, path: .}\n  - {name: a, path: x}\n",
        "4:12: repositories[2].name: 'a' is there already: repositories[0], in line 2",
    ),
    "a server twice": (
        "gitlab:\n  - {name: a, url: https://x}\n  - {name: a, url: https://y}\n",
        "3:12: gitlab[1].name: 'a' is there already: gitlab[0], in line 2",
    ),
    "a group twice": (
        "gitlab: [{name: a, url: https://x}]\ngroups:\n  - {gitlab: a, group: g}\n  - {gitlab: a, group: g}\n",
        "4:24: groups[1].group: 'g' is there already: groups[0], in line 3",
    ),
    "a list as a name": ("gitlab:\n  - {name: [], url: https://x}\n", "2:12: gitlab[0].name must be text"),
    "a name with a space": ("repositories:\n  - {name: a b, path: .}\n", "2:12: repositories[0].name must be 1 to 200"),
    "a name like an option": ("repositories:\n  - {name: -a, path: .}\n", "2:12: repositories[0].name must be 1 to 2"),
    "a name like a path": ("repositories:\n  - {name: ../a, path: .}\n", "2:12: repositories[0].name must be 1 to 20"),
    "a name too long": (f"repositories:\n  - {{name: {'a' * 201}, path: .}}\n", "2:12: repositories[0].name must be"),
    "a collection like a path": (ONE % "collection: a/b", "2:38: repositories[0].collection must be 1 to 255 letters"),
    "a branch that git refuses": (ONE % "branch: a..b", "2:34: repositories[0].branch is no name that git allows"),
    "a branch as a full reference": (ONE % "branch: refs/heads/a", "repositories[0].branch must be the branch alone"),
    # Where a repository is
    "an unknown server": (
        "gitlab: [{name: main, url: https://x}]\nrepositories:\n  - {name: a, gitlab: mian, project: g/p}\n",
        "3:23: repositories[0].gitlab: no server in the top-level `gitlab` has the name 'mian'; did you mean `main`?",
    ),
    "an unknown server of a group": (
        "groups: [{gitlab: main, group: g}]\n",
        "1:19: groups[0].gitlab: no server in the top-level `gitlab` has the name 'main'; there is none",
    ),
    "no source": ("repositories:\n  - {name: a}\n", "2:5: repositories[0]: exactly one of `gitlab`, `git` and `path`"),
    "two sources": (ONE % "git: https://x/y", "2:23: repositories[0]: exactly one of `gitlab`, `git` and `path`"),
    "a server without a project": (
        "gitlab: [{name: m, url: https://x}]\nrepositories:\n  - {name: a, gitlab: m}\n",
        "3:5: repositories[0]: `gitlab` needs `project`",
    ),
    "a project without a server": (
        "repositories:\n  - {name: a, project: g/p}\n",
        "2:5: repositories[0]: `project` ne",
    ),
    "a project without a group": (
        "gitlab: [{name: m, url: https://x}]\nrepositories:\n  - {name: a, gitlab: m, project: p}\n",
        "3:35: repositories[0].project must be the path of a project with its group",
    ),
    "a project as an address": (
        "gitlab: [{name: m, url: https://x}]\nrepositories:\n  - {name: a, gitlab: m, project: 'https://x/g/p'}\n",
        "3:35: repositories[0].project must be the path of the project",
    ),
    "an ssh address": (
        "repositories:\n  - {name: a, git: 'ssh://git@x/y'}\n",
        "2:20: repositories[0].git is an ssh or",
    ),
    "an scp address": (
        "repositories:\n  - {name: a, git: 'git@x:g/y.git'}\n",
        "2:20: repositories[0].git is an ssh or",
    ),
    "a git:// address": ("repositories:\n  - {name: a, git: 'git://x/y'}\n", "2:20: repositories[0].git is an ssh or"),
    "a folder as git address": (
        "repositories:\n  - {name: a, git: /srv/x.git}\n",
        "2:20: repositories[0].git is on th",
    ),
    "an address as folder": (
        "repositories:\n  - {name: a, path: 'https://x/y'}\n",
        "2:21: repositories[0].path is an a",
    ),
    "a git address of a server alone": ("repositories:\n  - {name: a, git: 'https://x/'}\n", "names a server, but no"),
    "a git address with a query": ("repositories:\n  - {name: a, git: 'https://x/y?z'}\n", "must not have a query"),
    "a port that is none": ("gitlab:\n  - {name: a, url: 'https://x:99999'}\n", "2:20: gitlab[0].url is no address"),
    "credentials in two places": (
        "repositories:\n  - {name: a, git: 'https://u:pw@x/y', password: '${P:-q}'}\n",
        "2:20: repositories[0].git holds credentials that stand in `username` or `password` as well",
    ),
    "a password for a folder": (ONE % "password: x", "2:36: repositories[0].password is for `git` alone"),
    "a GitLab with its API's address": (
        "gitlab:\n  - {name: a, url: https://x/api/v4}\n",
        "2:20: gitlab[0].url must be the address of GitLab itself",
    ),
    "a GitLab with credentials": ("gitlab:\n  - {name: a, url: 'https://u:p@x'}\n", "gitlab[0].url must not hold cred"),
    "a GitLab of another scheme": (
        "gitlab:\n  - {name: a, url: gitlab.example.com}\n",
        "gitlab[0].url must start with",
    ),
    "a token with a space": ("gitlab:\n  - {name: a, url: 'https://x', token: 'a b'}\n", "must be printable ASCII"),
    # Embedding
    "an unknown provider": (
        EMBEDDING % "provider: olama",
        "1:23: embedding.provider must be 'local', 'openai', 'tei', 'ollama' or 'none'; did you mean `ollama`?",
    ),
    "openai without a model": (
        EMBEDDING % "provider: openai, api_key: '${K:-k}'",
        "model is needed for provider openai",
    ),
    "openai without a key": (EMBEDDING % "provider: openai, model: m", "1:12: embedding.api_key is needed for provide"),
    "tei without an address": (EMBEDDING % "provider: tei", "1:12: embedding.url is needed for provider tei"),
    "ollama without a model": (EMBEDDING % "provider: ollama, url: 'http://x'", "embedding.model is needed for provi"),
    "an address for the local model": (
        EMBEDDING % "url: 'http://x'",
        "1:18: embedding.url has no meaning for provider",
    ),
    # Versions of an index
    "a duration without its unit": (
        "index: {keep_retired: '24'}\n",
        "1:23: index.keep_retired must be a number of sec",
    ),
    "a duration in a unit that is none": ("index: {keep_retired: 2w}\n", "a number with s, m, h or d, such as 24h"),
    "a duration below 0": ("index: {keep_retired: -1}\n", "1:23: index.keep_retired must be at least 0"),
    "a duration of ten years": ("index: {keep_retired: 3650d}\n", "index.keep_retired must be at most 31,622,400"),
    "a misspelt duration": (
        "index: {keep_retird: 1h}\n",
        "unknown key `keep_retird` in index; did you mean `keep_retired`?",
    ),
    "a duration by the name that it has in the program": ("index: {keep_retired_seconds: 5}\n", "1:9: unknown key"),
    "a gate that is not there": ("index:\n  gate: gone.yaml\n", "2:9: index.gate names no file on this machine"),
    "a gate that is a folder": ("index: {gate: .}\n", "1:15: index.gate names no file on this machine"),
    "a gate whose name no file can have": (
        f"index: {{gate: {'a' * 300}}}\n",
        "index.gate names no file on this machin",
    ),
    "a fall by more than everything": ("index: {must_not_fall: 1.1}\n", "index.must_not_fall must be at most 1"),
    "a window for no model": (EMBEDDING % "provider: none, window: 500", "1:37: embedding.window has no meaning for p"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_its_place(mistake: str, complaints: Complaints) -> None:
    text, expected = MISTAKES[mistake]

    found = complaints(text)

    assert len(found) == 1, found
    assert found[0].startswith(expected) if expected[0].isdecimal() else expected in found[0], found


def test_all_mistakes_are_reported_at_once_in_the_order_of_the_file(complaints: Complaints) -> None:
    text = """\
gitlab:
  - {name: main, url: "ftp://x", tokn: "${GITLAB_TOKEN}"}
defaults: {shedule: "@daily", timezone: Mars}
repositories:
  - {name: a, gitlab: man, project: g/p, schedule: "0 0 30 2 *"}
  - {name: a, path: ., max_file_bytes: 0}
  - {name: b, path: ., path: x}
embedding: {provider: lokal}
"""

    found = complaints(text)

    assert [each.split(" ")[0] for each in found] == [
        "2:23:",
        "2:34:",
        "2:40:",
        "3:12:",
        "3:41:",
        "5:23:",
        "5:52:",
        "6:12:",
        "6:40:",
        "7:24:",
        "8:23:",
    ]


def test_a_value_that_is_wrong_in_itself_brings_no_second_complaint(complaints: Complaints) -> None:
    assert len(complaints("repositories:\n  - {name: a, git: '${MISSING}'}\n")) == 1
    assert len(complaints("repositories:\n  - {name: a, gitlab: '${MISSING}', project: g/p}\n")) == 1
    assert len(complaints("embedding: {provider: '${MISSING}', url: 'http://x'}\n")) == 1


def test_a_file_that_is_not_utf8_is_refused_at_the_place_of_the_first_wrong_byte(complaints: Complaints) -> None:
    assert complaints(b"defaults: {}\n# caf\xe9\n") == ["2:6: not UTF-8 text: save the file as UTF-8"]


def test_a_file_of_more_than_a_megabyte_is_refused_unread(complaints: Complaints) -> None:
    assert complaints(b"#" * 1_000_001) == ["1:1: the file is larger than 1,000,000 bytes"]


def test_a_file_that_aliases_blow_up_is_refused(complaints: Complaints) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]

    assert "more than 100,000 values" in complaints("\n".join(lines))[0]


def test_what_an_anchor_names_can_be_used_again(load: Load) -> None:
    registry = load(
        "repositories:\n  - {name: a, path: ., exclude: &x ['*.md']}\n  - {name: b, path: ., exclude: *x}\n"
    ).registry

    assert [each.exclude for each in registry.resolved()] == [("*.md",), ("*.md",)]


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


@given(middle=st.text(st.sampled_from("ZQ7 ,:/@?#-*[](){}%$'\"\\\n\tüñ"), max_size=150))
def test_no_value_of_a_variable_is_in_any_error(load: Load, middle: str) -> None:
    secret = f"ZQX{middle}XQZ"

    with pytest.raises(RegistryErrors) as caught:
        load(EVERY_VALUE.format('"${SECRET}"', "${SECRET}"), SECRET=secret)

    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert "zqx" not in shown.lower()
    assert "xqz" not in shown.lower()


def test_no_secret_that_stands_in_the_clear_is_in_any_error(complaints: Complaints) -> None:
    text = """\
gitlab:
  - {name: main, url: "https://user:glpat-hush@x", token: ["glpat-hush"]}
  - {name: other, url: "https://x", token: "glpat-hush with a space"}
repositories:
  - {name: a, git: "https://user:glpat-hush@x:port/y"}
  - {name: b, git: "https://glpat-hush@x/y?", password: {a: glpat-hush}}
  - {name: c, git: "ssh://user:glpat-hush@x/y"}
  - {name: d, git: "https://u:glpat-hush@x/y", password: glpat-hush}
embedding: {provider: openai, api_key: 5, url: "https://glpat-hush@x"}
qdrant: {url: "https://key:glpat-hush@x", api_key: "glpat-hush\\n1"}
"""

    found = complaints(text)

    assert len(found) >= 9
    assert "hush" not in "".join(found)


@pytest.mark.parametrize(
    "text",
    ["token: *hush\n", "token: 'hush\n", "token: hush: x\n", "token: @hush\n", "a: [hush\n", "token: hush\n - x\n"],
)
def test_the_parsers_own_words_which_quote_the_file_are_not_shown(text: str, complaints: Complaints) -> None:
    assert "hush" not in "".join(complaints(text))


@given(st.one_of(st.binary(max_size=60), st.text("ab:- \n\t[]{}\"'#&*!|>%@`$?,\\", max_size=40).map(str.encode)))
def test_rubbish_is_answered_with_a_place(load: Load, content: bytes) -> None:
    try:
        load(content)
    except RegistryErrors as error:
        assert all(problem.line >= 1 and problem.column >= 1 for problem in error.problems)
