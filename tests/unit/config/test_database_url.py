"""What DATABASE_URL may say, and what of it is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.config.database_url import PostgresqlAddress, SqliteAddress, parse_address, sqlite_url
from reposync.errors import ConfigError

SECRET = "s3cr3t-pa55word"


@given(
    st.text(st.characters(exclude_characters="\0/", codec="utf-8"), min_size=1).filter(lambda name: name != ":memory:")
)
def test_a_file_of_any_name_has_an_address(name: str) -> None:
    path = Path("/state") / name

    assert parse_address(sqlite_url(path)) == SqliteAddress(path)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"postgresql://sync:{SECRET}@db.example.com:5432/code", "code on db.example.com:5432"),
        (f"postgres://sync:{SECRET}@one:1,two:2/code?target_session_attrs=primary", "code on one:1,two:2"),
        (f"postgresql+asyncpg:///code?host=/run/pg&password={SECRET}", "code on /run/pg"),
        (f"postgresql://sync:{SECRET}%40{SECRET}@[::1]/code", "code on [::1]"),
        ("postgresql://", "on the local server"),
    ],
)
def test_what_is_shown_of_an_address_has_neither_user_nor_password(url: str, shown: str) -> None:
    address = parse_address(url)

    assert isinstance(address, PostgresqlAddress)
    assert address.where == shown
    assert address.dsn.startswith("postgresql://")


@pytest.mark.parametrize(
    ("url", "servers"),
    [
        ("postgresql://a:b@one:1/x", ["postgresql://a:b@one:1/x"]),
        (
            "postgresql://a:b@one:1,two/x",
            [f"postgresql://a:b@{each}/x?target_session_attrs=read-write" for each in ("one:1", "two")],
        ),
        (
            "postgresql://a@[::1]:1,[::2]/x?target_session_attrs=primary",
            [f"postgresql://a@{each}/x?target_session_attrs=primary" for each in ("[::1]:1", "[::2]")],
        ),
        (
            "postgresql:///x?host=/run/one,two&port=1,2",
            [
                "postgresql:///x?target_session_attrs=read-write&host=%2Frun%2Fone&port=1",
                "postgresql:///x?target_session_attrs=read-write&host=two&port=2",
            ],
        ),
        (
            "postgresql:///x?host=/run/one,/run/two",
            [f"postgresql:///x?target_session_attrs=read-write&host=%2Frun%2F{each}" for each in ("one", "two")],
        ),
        ("postgresql:///x?host=one,two&port=1,2,3", ["postgresql:///x?host=one%2Ctwo&port=1%2C2%2C3"]),
    ],
)
def test_each_of_several_servers_is_asked_whether_it_can_be_written_to(url: str, servers: list[str]) -> None:
    address = parse_address(url)

    assert isinstance(address, PostgresqlAddress)
    assert address.servers == servers


def test_the_option_for_pgbouncer_is_ours_and_the_others_are_the_drivers() -> None:
    for name in ("sslmode", "ssl"):
        address = parse_address(f"postgresql+asyncpg://db/code?{name}=require&prepared_statement_cache_size=0")

        assert address == PostgresqlAddress(
            "postgresql://db/code?sslmode=require", "code on db", statement_cache_size=0
        )


@pytest.mark.parametrize(
    "url",
    [
        "",
        f"u:{SECRET}@db/x",
        f"mysql://sync:{SECRET}@db/x",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite://host/x.db",
        f"postgresql://sync:{SECRET}/x@db/code",
        f"postgresql://sync:{SECRET}?x@db/code",
        f"postgresql://sync:{SECRET}#x@db/code",
        f"postgresql://sync:{SECRET}@[db/code",
        f"postgresql://sync:{SECRET}@db/code?prepared_statement_cache_size=none",
    ],
)
def test_any_other_address_is_a_mistake_that_is_named_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match="DATABASE_URL") as caught:
        parse_address(url)

    assert SECRET not in f"{caught.value}{caught.value.__cause__}"
