from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.config.database_url import PostgresqlAddress, SqliteAddress, parse_address, sqlite_url
from reposync.config.settings import Settings
from reposync.errors import ConfigError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty current folder and an empty home."""
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")


def test_nothing_configured_means_one_process_with_its_state_in_the_users_folder(tmp_path: Path) -> None:
    names = "CONFIG STATE_DIR DATABASE_URL REDIS_URL QDRANT_URL QDRANT_API_KEY API_TOKEN LOG_FORMAT"
    empty = {"POD_NAME": ""} | {f"REPOSYNC_{name}": "" for name in names.split()}
    settings = Settings.from_environment({})

    state = tmp_path / "home/.local/state/reposync"
    url = f"sqlite:///{state}/reposync.db"
    assert settings == Settings(config_path=None, state_dir=state, database_url=url, pod_name=socket.gethostname())
    assert (settings.redis_url, settings.qdrant_url, settings.api_tokens) == (None, None, ())
    assert settings.log_format == "console"
    assert not state.exists()
    assert Settings.from_environment(empty) == settings


def test_every_variable_is_read(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").touch()
    twice = "operate:hush:for:two:12345"
    environ = {
        "REPOSYNC_CONFIG": str(tmp_path / "r.yaml"),
        "REPOSYNC_STATE_DIR": str(tmp_path / "state"),
        "REPOSYNC_DATABASE_URL": "postgresql://u:hush@db/reposync",
        "REPOSYNC_REDIS_URL": "redis://:hush@redis:6379/1",
        "REPOSYNC_QDRANT_URL": "https://qdrant:6333/",
        "REPOSYNC_QDRANT_API_KEY": "hush-key",
        "REPOSYNC_API_TOKEN": f"read:hush-for-one-1234, {twice},hush-for-three-12,{twice},",
        "POD_NAME": "pod-1",
        "REPOSYNC_LOG_FORMAT": "json",
    }
    settings = Settings.from_environment(environ)

    assert (settings.config_path, settings.state_dir) == (tmp_path / "r.yaml", tmp_path / "state")
    assert settings.database_url == environ["REPOSYNC_DATABASE_URL"]
    assert settings.redis_url == environ["REPOSYNC_REDIS_URL"]
    assert settings.qdrant_url == "https://qdrant:6333"
    assert settings.qdrant_api_key is not None
    assert settings.qdrant_api_key.get_secret_value() == "hush-key"
    assert [(token.role, token.secret.get_secret_value()) for token in settings.api_tokens] == [
        ("read", "hush-for-one-1234"),
        ("operate", "hush:for:two:12345"),
        ("operate", "hush-for-three-12"),
    ]
    assert (settings.pod_name, settings.log_format) == ("pod-1", "json")
    assert "hush" not in f"{settings!r} {settings}"


def test_the_registry_is_looked_for_here_and_then_in_the_users_configuration(tmp_path: Path) -> None:
    ours = tmp_path / "home/.config/reposync/repositories.yaml"
    ours.parent.mkdir(parents=True)
    ours.touch()
    assert Settings.from_environment({}).config_path == ours

    Path("repositories.yaml").touch()
    assert Settings.from_environment({}).config_path == tmp_path / "work/repositories.yaml"


@pytest.mark.parametrize("folder", ["state", "what? 100% [ü]"])
def test_a_sqlite_file_is_found_again_from_every_folder(folder: str, tmp_path: Path) -> None:
    state = Settings.from_environment({"REPOSYNC_STATE_DIR": str(tmp_path / folder)})
    relative = Settings.from_environment({"REPOSYNC_DATABASE_URL": "sqlite:///x.db"})

    assert parse_address(state.database_url) == SqliteAddress(tmp_path / folder / "reposync.db")
    assert parse_address(relative.database_url) == SqliteAddress(tmp_path / "work/x.db")


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("REPOSYNC_CONFIG", "gone.yaml", "names gone.yaml, which is no file"),
        ("REPOSYNC_CONFIG", ".", "names ., which is no file"),
        ("REPOSYNC_STATE_DIR", "/dev/null", "is /dev/null, which is not a folder"),
        ("REPOSYNC_DATABASE_URL", "mysql://u:hush@h/d", "must start with postgresql:// or sqlite://"),
        ("REPOSYNC_REDIS_URL", "redis+sentinel://h:26379/mymaster", "of a Sentinel or Cluster name a service"),
        ("REPOSYNC_REDIS_URL", "http://h", "must be redis://, rediss:// or unix://"),
        ("REPOSYNC_REDIS_URL", "redis://:hush@h:port", "must be redis://"),
        ("REPOSYNC_QDRANT_URL", "qdrant:6333", "must start with https:// (or http://)"),
        ("REPOSYNC_QDRANT_URL", "https://u:hush@h", "must not hold credentials"),
        ("REPOSYNC_QDRANT_API_KEY", "hu sh", "must be printable ASCII without spaces"),
        ("REPOSYNC_API_TOKEN", "a-token-that-is-long-enough,hush b", "has a wrong token (number 2)"),
        ("REPOSYNC_API_TOKEN", f"hush{'x' * 2_000}", "16 to 1024 characters"),
        ("REPOSYNC_API_TOKEN", "reed:hush-hush-hush-hush", "has an unknown role in token 1: write read:"),
        ("REPOSYNC_API_TOKEN", "read:hush-hush-hush-hush,operate:hush-hush-hush-hush", "gives one token two roles"),
        ("POD_NAME", "a\nb", "must be one line"),
        ("REPOSYNC_LOG_FORMAT", "xml", "must be console or json"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_the_variable_and_no_secret(name: str, value: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_environment({name: value})

    assert str(caught.value).startswith(name)
    assert complaint in str(caught.value)
    assert "hu" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_all_wrong_variables_are_named_at_once() -> None:
    names = ["REPOSYNC_DATABASE_URL", "REPOSYNC_REDIS_URL", "REPOSYNC_LOG_FORMAT"]
    with pytest.raises(ConfigError) as caught:
        Settings.from_environment(dict.fromkeys(names, "x"))

    assert [line.split()[0].rstrip(":") for line in str(caught.value).splitlines()] == names


# The address of the database -----------------------------------------------------------------------------------------

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
    with pytest.raises(ConfigError, match="address of the database") as caught:
        parse_address(url)

    assert SECRET not in f"{caught.value}{caught.value.__cause__}"


def test_a_name_of_reposync_counts_before_one_that_other_programs_have_and_a_file_can_hold_the_value(
    tmp_path: Path,
) -> None:
    secret = tmp_path / "token"
    secret.write_text("operate:hush-hush-hush-hush\n")
    (tmp_path / "database").write_text("postgresql://u:hush@db/reposync\n")
    environ = {
        "DATABASE_URL": "postgresql://u:hush@db/shop",
        "REPOSYNC_DATABASE_URL_FILE": str(tmp_path / "database"),
        "REDIS_URL": "redis://shop",
        "REPOSYNC_REDIS_URL": "redis://reposync",
        "REPOSYNC_API_TOKEN_FILE": str(secret),
    }
    settings = Settings.from_environment(environ, bare_names=True)

    assert settings.database_url == "postgresql://u:hush@db/reposync"
    assert settings.redis_url == "redis://reposync"
    assert [token.role for token in settings.api_tokens] == ["operate"]
    with pytest.raises(ConfigError, match="REPOSYNC_REDIS_URL_FILE names a file that cannot be read"):
        Settings.from_environment({"REPOSYNC_REDIS_URL_FILE": str(tmp_path / "none")})
