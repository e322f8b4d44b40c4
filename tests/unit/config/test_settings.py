from __future__ import annotations

import socket
from pathlib import Path

import pytest

from reposync.config.database_url import SqliteAddress, parse_address
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
    settings = Settings.from_environment({})

    state = tmp_path / "home/.local/state/reposync"
    assert settings == Settings(
        config_path=None,
        state_dir=state,
        database_url=f"sqlite:///{state}/reposync.db",
        pod_name=socket.gethostname(),
    )
    assert (settings.redis_url, settings.qdrant_url, settings.qdrant_api_key, settings.api_tokens) == (
        None,
        None,
        None,
        (),
    )
    assert settings.log_format == "console"
    assert not state.exists()


def test_every_variable_is_read(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").touch()
    settings = Settings.from_environment(
        {
            "REPOSYNC_CONFIG": str(tmp_path / "r.yaml"),
            "REPOSYNC_STATE_DIR": str(tmp_path / "state"),
            "DATABASE_URL": "postgresql://u:p@db/reposync",
            "REDIS_URL": "redis://:p@redis:6379/1",
            "QDRANT_URL": "https://qdrant:6333/",
            "QDRANT_API_KEY": "key",
            "REPOSYNC_API_TOKEN": "read:a-secret-for-one-1, operate:a-secret-for-two-2,a-secret-for-three,",
            "POD_NAME": "pod-1",
            "REPOSYNC_LOG_FORMAT": "json",
        }
    )

    assert settings.config_path == tmp_path / "r.yaml"
    assert settings.state_dir == tmp_path / "state"
    assert settings.database_url == "postgresql://u:p@db/reposync"
    assert settings.redis_url == "redis://:p@redis:6379/1"
    assert settings.qdrant_url == "https://qdrant:6333"
    assert settings.qdrant_api_key is not None
    assert settings.qdrant_api_key.get_secret_value() == "key"
    assert [(token.role, token.secret.get_secret_value()) for token in settings.api_tokens] == [
        ("read", "a-secret-for-one-1"),
        ("operate", "a-secret-for-two-2"),
        ("operate", "a-secret-for-three"),
    ]
    assert (settings.pod_name, settings.log_format) == ("pod-1", "json")


def test_the_same_token_twice_is_one_and_a_secret_may_have_a_colon_behind_its_role() -> None:
    said = "operate:hush:hush:hush:hush,operate:hush:hush:hush:hush,"
    (token,) = Settings.from_environment({"REPOSYNC_API_TOKEN": said}).api_tokens

    assert (token.role, token.secret.get_secret_value()) == ("operate", "hush:hush:hush:hush")


def test_a_variable_that_is_set_to_nothing_is_not_set() -> None:
    names = "REPOSYNC_CONFIG REPOSYNC_STATE_DIR DATABASE_URL REDIS_URL QDRANT_URL QDRANT_API_KEY REPOSYNC_API_TOKEN"
    names += " POD_NAME REPOSYNC_LOG_FORMAT"

    assert Settings.from_environment(dict.fromkeys(names.split(), "")) == Settings.from_environment({})


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
    relative = Settings.from_environment({"DATABASE_URL": "sqlite:///x.db"})

    assert parse_address(state.database_url) == SqliteAddress(tmp_path / folder / "reposync.db")
    assert parse_address(relative.database_url) == SqliteAddress(tmp_path / "work/x.db")


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("REPOSYNC_CONFIG", "gone.yaml", "names gone.yaml, and there is no such file"),
        ("REPOSYNC_CONFIG", ".", "names ., which is a folder"),
        ("REPOSYNC_STATE_DIR", "/dev/null", "is /dev/null, which is not a folder"),
        ("DATABASE_URL", "mysql://u:hush@h/d", "must start with postgresql:// or sqlite://"),
        ("DATABASE_URL", "u:hush@h/d", "is not a URL"),
        ("DATABASE_URL", "postgres://u:hu/sh@h/d", "is malformed"),
        ("DATABASE_URL", "postgres://u:hu?sh=1@h/d", "is malformed"),
        ("DATABASE_URL", "postgres://u:hu#sh@h/d", "is malformed"),
        ("DATABASE_URL", "sqlite://", "must name a file"),
        ("DATABASE_URL", "sqlite:///:memory:", "must name a file"),
        ("REDIS_URL", "redis+sentinel://h:26379/mymaster", "names a Sentinel or a Cluster"),
        ("REDIS_URL", "rediss+cluster://h:6379", "that leads to the primary"),
        ("REDIS_URL", "http://h", "must start with redis://, rediss:// or unix://"),
        ("REDIS_URL", "redis://:hush@", "cannot be read as an address"),
        ("REDIS_URL", "redis://:hush@h:port", "cannot be read as an address"),
        ("QDRANT_URL", "qdrant:6333", "must start with https:// (or http://)"),
        ("QDRANT_URL", "https://u:hush@h", "must not hold credentials"),
        ("QDRANT_API_KEY", "hu sh", "must be printable ASCII without spaces"),
        ("REPOSYNC_API_TOKEN", "a-token-that-is-long-enough,hush b", "must be a comma-separated list of tokens"),
        (
            "REPOSYNC_API_TOKEN",
            "a-token-that-is-long-enough,hush",
            "has a token (number 2) of 4 characters: at least 16",
        ),
        ("REPOSYNC_API_TOKEN", f"hush{'x' * 2_000}", "of 2004 characters: at least 16, at most 1024"),
        ("REPOSYNC_API_TOKEN", "reed:hush-hush-hush-hush", "has an unknown role in token 1: write read:"),
        ("REPOSYNC_API_TOKEN", "read:hush-hush-hush-hush,operate:hush-hush-hush-hush", "gives one token two roles"),
        ("REPOSYNC_API_TOKEN", "read:hush-hush-hush-hush,hush-hush-hush-hush", "gives one token two roles"),
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
    with pytest.raises(ConfigError) as caught:
        Settings.from_environment({"DATABASE_URL": "x", "REDIS_URL": "x", "REPOSYNC_LOG_FORMAT": "x"})

    lines = str(caught.value).splitlines()
    assert [line.split()[0] for line in lines] == ["DATABASE_URL", "REDIS_URL", "REPOSYNC_LOG_FORMAT"]


def test_no_secret_is_in_the_repr() -> None:
    settings = Settings.from_environment(
        {
            "DATABASE_URL": "postgres://u:hush@h/d",
            "REDIS_URL": "redis://:hush@h",
            "QDRANT_API_KEY": "hush",
            "REPOSYNC_API_TOKEN": "hush-hush-hush-hush",
        }
    )

    assert "hush" not in f"{settings!r} {settings}"
