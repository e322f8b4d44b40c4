import hashlib
import pickle
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.content.masking import masked
from reposync.content.secret_policy import SecretAction, SecretPolicy
from reposync.content.secrets import RulesUnavailable, SecretScanner, load_rules, may_hold_secret
from reposync.content.secrets_in_lines import scan_lines
from reposync.finding import count_masks
from reposync.sync.prepare import ContentSettings, Preparation, RawFile
from tests.fixtures.canaries import PROVIDERS, value_of
from tests.fixtures.secret_rules import rules_folder

POLICY = SecretPolicy(key=b"key")
VALUE = "tR4nkZq81LmXw02bYc7dPfGs"
SCANNER = SecretScanner(str(rules_folder()))


@pytest.mark.parametrize("kind", PROVIDERS)
def test_a_secret_of_a_provider_is_masked_with_as_many_characters_and_lines(kind: str):
    chance = random.Random(kind)
    for _ in range(20):
        secret = PROVIDERS[kind](chance)
        text = f'naïve = "→"\nsetting = """{secret}"""\nrest = 1\n'
        found = SCANNER.scan(text, POLICY)
        assert value_of(kind, secret) not in found.text
        assert len(found.text) == len(text)
        assert found.text.count("\n") == text.count("\n")
        assert found.text.startswith('naïve = "→"\nsetting = ') and found.text.endswith("\nrest = 1\n")
        assert {finding.line for finding in found.findings} == {2}
        assert count_masks(found.text) == 1


@pytest.mark.parametrize(
    "line",
    [
        'const apiKey: string = "{}";',
        'let token: &str = "{}";',
        '"api_key": "{}"',
        "API_TOKEN={}",
        "export SECRET_KEY={}",
        "api_token: {}",
        'password := "{}"',
        "'secret' => '{}'",
        '<add key="ApiKey" value="{}"/>',
        "<password>{}</password>",
        'client_secret("{}")',
    ],
)
def test_a_value_that_is_a_secret_by_its_name_is_reported_and_masked_only_on_request(line: str):
    text = line.format(VALUE)
    found = SCANNER.scan(text, POLICY)
    assert found.text == text
    assert [(finding.rule, finding.action) for finding in found.findings] == [("named-secret", "warn")]
    assert VALUE not in SCANNER.scan(text, SecretPolicy(generic=SecretAction.MASK)).text


@pytest.mark.parametrize(
    "line",
    [
        "private_key: x25519.X25519PrivateKey",
        'password = "correct horse battery"',
        'token = "${CI_JOB_TOKEN_2026}"',
        'api_key = "your-api-key-12345"',
        "token = decode_base64_token_2(header)",
        "https://user:password@example.com/",
    ],
)
def test_names_placeholders_and_calls_are_no_secrets(line: str):
    found = SCANNER.scan(line, POLICY)
    assert (found.text, found.findings) == (line, ())


def test_the_data_of_a_kubernetes_secret_and_a_lone_key_id_are_reported():
    text = "kind: Secret\ndata:\n  password: dFI0bmtacTgxTG1YdzAyYg==\nid: AKIAQ3EGRZ5TLMQ7VW2D\n"
    rules = [(finding.rule, finding.line) for finding in SCANNER.scan(text, POLICY).findings]
    assert rules == [("kubernetes-secret", 3), ("aws-access-key-id", 4)]


def test_a_value_is_masked_wherever_the_file_repeats_it():
    secret = PROVIDERS["twilio"](random.Random(1))
    found = SCANNER.scan(f'twilio_key = "{secret}"\n# was: x{secret}x\n', POLICY)
    assert secret not in found.text
    assert count_masks(found.text) == 2


def test_an_allowed_value_and_a_rule_that_is_off_leave_the_text_as_it_is():
    secret = PROVIDERS["gitlab"](random.Random(2))
    text = f"token = {secret}\n"
    allowed = SecretPolicy(allow_values=[hashlib.sha256(secret.encode()).hexdigest()], generic=SecretAction.OFF)
    assert SCANNER.scan(text, allowed).text == text
    warned = SCANNER.scan(text, SecretPolicy(SecretAction.WARN, SecretAction.OFF))
    assert (warned.text, [finding.action for finding in warned.findings]) == (text, ["warn"])
    assert SCANNER.scan(text, SecretPolicy(SecretAction.SKIP)).is_skipped


def test_a_fingerprint_says_whether_it_is_the_same_secret_and_depends_on_the_key():
    secret = PROVIDERS["gitlab"](random.Random(3))
    one, other = (SCANNER.scan(f"{words}{secret}", POLICY).findings[0] for words in ("a = ", "\n\nb: "))
    assert one.fingerprint == other.fingerprint
    assert secret not in repr(one)
    assert SCANNER.scan(secret, SecretPolicy(key=b"other")).findings[0].fingerprint != one.fingerprint


@st.composite
def texts_with_secrets(draw: st.DrawFn) -> str:
    chance = random.Random(draw(st.integers(0, 2**32)))
    around = st.text(st.sampled_from("ab =\"'\n\r\té→😀\u2028:{}()/"), max_size=30)
    secrets = draw(st.lists(st.sampled_from([*PROVIDERS]), max_size=4))
    parts = [draw(around) + make(chance) for make in map(PROVIDERS.__getitem__, secrets)]
    return "".join([*parts, draw(around)])


@given(texts_with_secrets())
def test_masking_again_changes_nothing_and_keeps_characters_and_lines(text: str):
    policy = SecretPolicy(generic=SecretAction.MASK)
    once = SCANNER.scan(text, policy).text
    assert SCANNER.scan(once, policy).text == once
    assert len(once) == len(text)
    assert [len(line) for line in once.splitlines()] == [len(line) for line in text.splitlines()]


@given(texts_with_secrets())
def test_a_file_that_is_allowed_becomes_what_it_would_be_without_rules_bit_for_bit(text: str):
    content = text.encode()
    file = RawFile(b"a.py", 0o100644, hashlib.sha1(content).hexdigest(), len(content), content)
    settings = ContentSettings(400, 80, 1_000_000)
    off = SecretPolicy(SecretAction.OFF, SecretAction.OFF)
    former = Preparation(SCANNER).prepare(file, settings, off, 100)
    preparation = Preparation(SCANNER)
    preparation.prepare(file, settings, SecretPolicy(generic=SecretAction.MASK), 100)
    allowed = preparation.prepare(file, settings, SecretPolicy(allow=["a.py"]), 100)
    assert pickle.dumps(allowed) == pickle.dumps(former)


@given(st.text(), st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50))))
def test_only_what_is_named_is_masked(text: str, spans: list[tuple[int, int]]):
    result = masked(text, ((min(start, len(text)), min(end, len(text)), "kind") for start, end in spans))
    hidden = {at for start, end in spans for at in range(start, end)}
    assert len(result) == len(text)
    assert all(result[at] == text[at] for at in range(len(text)) if at not in hidden)
    assert result.splitlines(keepends=True) == [] or len(result.splitlines()) == len(text.splitlines())


@pytest.mark.parametrize("make", PROVIDERS.values(), ids=PROVIDERS)
def test_rules_are_loaded_for_every_text_that_holds_a_secret(make: Callable[[random.Random], str]):
    assert all(may_hold_secret(make(random.Random(seed)).encode()) for seed in range(200))
    assert not may_hold_secret(b"def add(one, two):\n    return one + two  # see docs/readme.md\n")


@pytest.mark.parametrize(
    "text",
    ["keys/{}.txt", "keys/{}/a.py", "{}.py", "There is no project {} here.", "failed ({}). Try", "'{}', and", "{}"],
)
def test_a_secret_in_a_path_or_a_message_is_masked(text: str):
    for kind, make in PROVIDERS.items():
        secret = make(random.Random(kind))
        if "/" in secret and "/" in text:  # it would be several names
            continue
        shown = text.format(secret)
        found = scan_lines(SCANNER, ["src/main.py", shown, "docs/readme.md"], POLICY)
        assert list(found) == [1], kind
        assert value_of(kind, secret) not in found[1].text
        assert len(found[1].text) == len(shown)


@pytest.mark.full
@pytest.mark.parametrize("damage", [lambda content: b"", lambda content: content[::-1]], ids=["empty", "garbage"])
def test_damaged_compiled_rules_are_compiled_again(tmp_path: Path, damage: Callable[[bytes], bytes]):
    for path in rules_folder().iterdir():
        (tmp_path / path.name).write_bytes(damage(path.read_bytes()))
    secret = PROVIDERS["gitlab"](random.Random(1))
    assert secret not in SecretScanner(str(tmp_path)).scan(secret, POLICY).text


def test_rules_that_cannot_be_loaded_are_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RulesUnavailable):
        load_rules(str(tmp_path / "file"))


def test_rules_of_a_path_change_with_the_policy_and_not_for_allowed_files():
    policy = SecretPolicy(allow=["tests/**"])
    assert policy.rules_of(b"tests/a.py") == ""
    assert policy.rules_of(b"src/a.py") == SecretPolicy().rules_of(b"src/a.py") != ""
    assert policy.fingerprint != SecretPolicy().fingerprint
    assert SecretPolicy(SecretAction.WARN).rules_of(b"src/a.py") != policy.rules_of(b"src/a.py")
    assert SecretPolicy(SecretAction.OFF, SecretAction.OFF).rules_of(b"src/a.py") == ""


def test_what_is_found_does_not_depend_on_the_texts_before() -> None:
    policy = SecretPolicy(generic=SecretAction.MASK, key=b"key")
    text = 'token = "aB1!cD2?eF3#gH4%"\n'  # nothing of it makes a scanner load the rules of providers
    fresh = SecretScanner(str(rules_folder()))
    found = fresh.scan(text, policy)
    SCANNER.scan(f'key = "{VALUE}"', policy)
    assert found == SCANNER.scan(text, policy)
    assert found.findings
