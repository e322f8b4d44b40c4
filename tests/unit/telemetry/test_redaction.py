import base64
import json
import random
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from reposync.telemetry.redaction import MASK, Secrets, names_secret
from tests.fixtures.canaries import PROVIDERS, value_of

SECRETS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="*"), min_size=6, max_size=60)
AROUND = st.text(max_size=30)


@given(secret=SECRETS, before=AROUND, after=AROUND)
def test_a_known_secret_is_never_left_in_a_text(secret: str, before: str, after: str) -> None:
    quoted = (quote(secret), quote(secret, safe=""), quote_plus(secret))
    for written in (secret, *quoted, json.dumps(secret)[1:-1], repr(secret)[1:-1]):
        assume(len(written) >= 6)
        redacted = Secrets([secret]).redact(f"{before}{written}{after}")
        # Where the text around it happens to spell it as well, that is gone too.
        assert secret not in redacted
        assert written not in redacted


@pytest.mark.parametrize("secret", ["glft-Ab9+/x?yZ_3=", "hunter22", "correct horse battery", "pässwörd/1"])
def test_a_known_secret_is_gone_in_forms_that_few_programs_write(secret: str) -> None:
    raw = secret.encode()
    encoded = base64.b64encode(b"user:" + raw).decode()
    wrapped = "\n  ".join(encoded[at : at + 5] for at in range(0, len(encoded), 5))
    broken = secret[:4] + "\r\n" + secret[4:]
    utf_16 = raw.decode("latin-1").encode("utf-16-le").decode("latin-1") if secret.isascii() else "\0".join(secret)
    for written in (quote(quote(secret, safe="")), raw.hex(), raw.hex().upper(), utf_16, broken, wrapped):
        redacted = Secrets([secret]).redact(f"before {written} after")
        assert MASK in redacted and len(redacted) < len(f"before {written} after") - len(secret) // 2, written
    assert Secrets([secret]).redact("before\nafter") == "before\nafter"


@given(secret=SECRETS, user=st.text(st.characters(exclude_characters=":", codec="utf-8"), max_size=12))
def test_a_known_secret_is_not_left_in_basic_credentials_whatever_the_user(secret: str, user: str) -> None:
    assume(not set(secret) & set(user))
    encoded = base64.b64encode(f"{user}:{secret}".encode()).decode()

    before, after = Secrets([secret]).redact(f"sent {encoded} to").removeprefix("sent ").removesuffix(" to").split(MASK)
    # Of the secret at most the bits that share a character with what stands before it, and the last few.
    assert len(before) <= len(user.encode() + b":") * 4 / 3 + 1
    assert len(after.rstrip("=")) <= 1


@given(secret=SECRETS, more=st.text(min_size=1, max_size=20))
def test_a_secret_that_begins_with_another_one_is_gone_as_a_whole(secret: str, more: str) -> None:
    assert Secrets([secret, secret + more]).redact(secret + more) == MASK


@given(secret=SECRETS, limit=st.integers(0, 200), before=st.text(max_size=200))
def test_no_beginning_of_a_secret_is_left_where_a_text_is_cut(secret: str, limit: int, before: str) -> None:
    assume(len(set(secret)) > 3)
    secret = secret * 2
    assume(secret[:6] not in before)
    redacted = Secrets([secret]).redact(before + secret + "x" * 1000, limit)

    assert len(redacted) <= limit + 1
    assert secret[:6] not in redacted


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("clone https://user:pa%40ss@git.example.com/a.git", "clone https://***@git.example.com/a.git"),
        ("clone https://oauth2@git.example.com/a.git", "clone https://***@git.example.com/a.git"),
        ("postgresql+asyncpg://u:p@ss@db:5432/x", "postgresql+asyncpg://***@db:5432/x"),
        ("redis://:pa/ss@cache:6379/0", "redis://***@cache:6379/0"),
        ("PRIVATE-TOKEN: abc", "PRIVATE-TOKEN: ***"),
        ("curl -H 'PRIVATE-TOKEN: abc' https://h", "curl -H 'PRIVATE-TOKEN: ***' https://h"),
        ("{'PRIVATE-TOKEN': 'abc', 'Accept': '*/*'}", "{'PRIVATE-TOKEN': '***', 'Accept': '*/*'}"),
        ("[(b'authorization', b'Bearer abc')]", "[(b'authorization', b'***')]"),
        ("Authorization: Bearer abc", "Authorization: ***"),
        ("authorization: Basic dTpw", "authorization: ***"),
        ("sent Bearer abc123def", "sent Bearer ***"),
        ("GET /api?private_token=abc&page=2", "GET /api?private_token=***&page=2"),
        ("GET /api?access_token=abc", "GET /api?access_token=***"),
        ("next=%2Fx%3Ftoken%3Dabc&x=1", "next=%2Fx%3Ftoken%3D***&x=1"),
        ("GITLAB_TOKEN=abc REDIS_PASSWORD='a b' x=1", "GITLAB_TOKEN=*** REDIS_PASSWORD=*** x=1"),
        ('{"api_key": "a\\"b", "model": "m"}', '{"api_key": "***", "model": "m"}'),
        ("{'password': 'a', 'user': 'u'}", "{'password': '***', 'user': 'u'}"),
        (r"body {\"token\": \"abc\", \"x\": 1}", r"body {\"token\": \"***\", \"x\": 1}"),
        ("with glpat-AbCdEf123456_-x.01.120abcdef in it", "with *** in it"),
        ("gldt-abcdefghij glrt-abcdefghij glsoat-abcdefghij", "*** *** ***"),
        ("key sk-proj-abcdEFGH1234567890 end", "key *** end"),
        ("hf_abcdefghijklmnopqrst ghp_abcdefghijklmnopqrst1234", "*** ***"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-_DEF end", "*** end"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----\nx", "***\nx"),
    ],
)
def test_what_looks_like_a_secret_is_masked_and_the_rest_stays(text: str, redacted: str) -> None:
    assert Secrets().redact(text) == redacted


@pytest.mark.parametrize("kind", PROVIDERS)
@pytest.mark.parametrize("text", ["no project {} here", "keys/{}.txt", "'{}', and"])
def test_what_providers_issue_is_masked(kind: str, text: str) -> None:
    for seed in range(20):
        secret = PROVIDERS[kind](random.Random(seed))
        assert value_of(kind, secret) not in Secrets().redact(text.format(secret))


@pytest.mark.parametrize(
    "text",
    [
        "https://gitlab.example.com:8443/platform/payments-api/-/blob/main/src/@types/index.d.ts",
        "http://127.0.0.1:6333/collections/code@2",
        "2 of 4096 tokens used, max_tokens=512",
        "basic authentication failed",
        "src/risk-assessment-of-many-things-12.py",
        "the token has expired; create one with read_api",
        "glob-pattern-that-is-long: glossary-of-terms",
        "commit 0f3c1d9ab2e4d5f60718293a4b5c6d7e8f901234 of main",
        "run 01JD2Q4Y6Z8X0W2V4T6R8P0N2M ended after 3.2 s",
        "key=value, monkey: banana, keyword='x'",
        "user@example.com wrote to git@git.example.com:group/project.git",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert Secrets(["a-secret-value"]).redact(text) == text


def test_an_address_stands_for_the_credentials_in_it() -> None:
    secrets = Secrets(["postgresql://app:s%40fe-word@db/x", "https://sometoken@git.example.com", "redis://cache:6379"])

    assert secrets.redact("s@fe-word s%40fe-word sometoken app db") == "*** *** *** app db"
    assert secrets.redact("redis://cache:6379") == "redis://cache:6379"


ORDINARY_VARIABLES = """
PWD=/home/ada/src/payments
XDG_SESSION_COOKIE=session-of-ada
GOOGLE_APPLICATION_CREDENTIALS=/home/ada/.config/gcloud/key.json
CI_REGISTRY_USER=gitlab-ci-token
DATABASE_URL=postgresql://postgres@db.example.com/reposync
HTTP_PROXY=http://proxy.example.com:3128
"""


def test_ordinary_variables_of_a_shell_a_desktop_or_a_ci_job_are_not_masked() -> None:
    variables = dict(each.split("=", 1) for each in ORDINARY_VARIABLES.split())
    secrets = Secrets.of_environment(variables)

    for value in variables.values():
        # A user in an address may be a token, and is masked there alone.
        text = f"error: '{value.rpartition('@')[2]}/nope' is not a registered repository"
        assert secrets.redact(text) == text


def test_the_settings_that_are_secrets_and_the_passwords_of_addresses_are_masked() -> None:
    secrets = Secrets.of_environment(
        {
            "REPOSYNC_API_TOKEN": "read:token-of-a-reader, operate:token-of-an-operator",
            "QDRANT_API_KEY": "key-of-qdrant",
            "GITLAB_TOKEN": "token-of-gitlab",
            "PGPASSWORD": "word-of-postgres",
            "DATABASE_URL": "postgresql://app:word-of-app@db/x",
            "https_proxy": "http://me:word-of-proxy@proxy:3128",
        }
    )

    said = "token-of-a-reader token-of-an-operator key-of-qdrant token-of-gitlab"
    assert secrets.redact(said) == f"{MASK} {MASK} {MASK} {MASK}"
    assert secrets.redact("word-of-postgres word-of-app word-of-proxy") == f"{MASK} {MASK} {MASK}"


def test_short_values_are_no_secrets_and_newlines_of_files_are_no_part_of_them() -> None:
    secrets = Secrets(["main", "", "fromafile\n"])

    assert secrets.redact("main fromafile") == f"main {MASK}"
    assert "fromafile" not in f"{secrets!r} {secrets}"


SECRET_KEYS = "token PRIVATE-TOKEN api_key apikey password Authorization client_secret cookie"
OTHER_KEYS = "tokens repository key author secretary token_count cookies_enabled"


@pytest.mark.parametrize(("keys", "expected"), [(SECRET_KEYS, True), (OTHER_KEYS, False)])
def test_a_key_names_a_secret(keys: str, expected: bool) -> None:
    assert {key: names_secret(key) for key in keys.split()} == dict.fromkeys(keys.split(), expected)


HOSTILE = ["a", "eyJ", "://", "://a:", "token", "token=", 'token": "', "sk-", "bearer ", "glpat-", "=", "\\"]


@pytest.mark.parametrize("piece", [*HOSTILE, "-----BEGIN PRIVATE KEY-----"])
def test_hostile_text_takes_no_longer_than_its_length(piece: str) -> None:
    # 100,000 characters: anything quadratic takes minutes, and the time limit of the suite ends it.
    Secrets(["hunter22"]).redact(piece * (100_000 // len(piece)))
