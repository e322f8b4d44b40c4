from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.config.document import read_document
from reposync.config.references import InterpolationError, interpolate, split_credentials
from tests.unit.config.conftest import Load

# What an environment can hold: any text without NUL.
VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("plain", "plain"),
        ("${SET}", "value"),
        ("a${SET}b${SET}", "avaluebvalue"),
        ("${UNSET:-other}", "other"),
        ("${EMPTY:-other}", "other"),
        ("${SET:-other}", "value"),
        ("${EMPTY}", ""),
        ("${UNSET:-}", ""),
        ("${UNSET:-a:-b $x}", "a:-b $x"),
        ("$$", "$"),
        ("$${SET}", "${SET}"),
        ("$$${SET}", "$value"),
        ("pa$word$", "pa$word$"),
        ("$SET", "$SET"),
    ],
)
def test_a_reference_is_replaced(raw: str, expected: str) -> None:
    assert interpolate(raw, {"SET": "value", "EMPTY": ""}) == expected


@pytest.mark.parametrize("raw", ["${", "${}", "${1A}", "${A", "${A-b}", "${A:?b}", "${A:-{}}", "${A B}", "${Ä}"])
def test_a_reference_that_cannot_be_read_is_an_error(raw: str) -> None:
    with pytest.raises(InterpolationError, match="cannot be read"):
        interpolate(raw, {"A": "a", "B": "b"})


@given(VALUES.filter(bool))
def test_no_value_changes_the_structure_of_the_file(value: str) -> None:
    template = "a: {V}\nb: '{V}'\nc: \"x{V}y\"\nd: [\"{V}\", {{e: '{V}'}}]\nf: |\n  {V}\n"

    document = read_document(template.format(V="${V}").encode(), "file", {"V": value})

    assert not document.problems
    assert document.data == {"a": value, "b": value, "c": f"x{value}y", "d": [value, {"e": value}], "f": f"{value}\n"}


@given(user=VALUES, password=VALUES)
def test_no_credential_changes_where_an_address_points_to(user: str, password: str) -> None:
    url = interpolate("https://${U}:${P}@git.example.com/g/${R}.git", {"U": user, "P": password, "R": "repo"})

    assert split_credentials(url) == ("https://git.example.com/g/repo.git", user, password)


def test_a_whole_address_may_come_from_one_variable() -> None:
    url = interpolate("${URL}", {"URL": "https://user:p%40ss@git.example.com/x"})

    assert split_credentials(url) == ("https://git.example.com/x", "user", "p@ss")


def test_a_variable_may_be_a_number_a_flag_a_word_or_null(load: Load) -> None:
    registry = load(
        "defaults: {max_file_bytes: '${SIZE}'}\n"
        "qdrant: {timeout_seconds: '${SECONDS:-2.5}', on_disk_payload: '${DISK}', quantization: '${Q}',\n"
        "  url: '${U:-}', api_key: '${KEY}', shard_number: '${SHARDS:-}'}\n"
        "gitlab: [{name: main, url: 'https://x', token: '${T}'}]\n"
        "repositories: [{name: a, path: ., branch: '${B}'}]\n",
        **{"SIZE": " 5000 ", "DISK": "False", "Q": "int8", "KEY": "", "T": "0123\n", "B": "1.10"},
    ).registry

    qdrant, token = registry.qdrant, registry.gitlab[0].token
    assert registry.defaults.max_file_bytes == 5000
    assert (qdrant.timeout_seconds, qdrant.on_disk_payload, qdrant.quantization) == (2.5, False, "int8")
    assert (qdrant.url, qdrant.api_key, qdrant.shard_number) == (None, None, None)
    assert registry.repositories[0].branch == "1.10", "a text that looks like a number stays a text"
    assert token is not None
    assert token.get_secret_value() == "0123", "without the line break of a mounted file"
