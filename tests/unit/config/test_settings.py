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
    names = "REPOSYNC_CONFIG REPOSYNC_STATE_DIR DATABASE_URL REDIS_URL QDRANT_URL QDRANT_API_KEY REPOSYNC_API_TOKEN"
    names += " POD_NAME REPOSYNC_LOG_FORMAT"
    settings = Settings.from_environment({})

    state = tmp_path / "home/.local/state/reposync"
    url = f"sqlite:///{state}/reposync.db"
    assert settings == Settings(config_path=None, state_dir=state, database_url=url, pod_name=socket.gethostname())
    assert (settings.redis_url, settings.qdrant_url, settings.api_tokens, settings.log_format) == (
        None,
        None,
        (),
        "console",
    )
    assert not state.exists()
    assert Settings.from_environment(dict.fromkeys(names.split(), "")) == settings


def test_every_variable_is_read(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").touch()
    twice = "operate:hush:for:two:12345"
    environ = {
        "REPOSYNC_CONFIG": str(tmp_path / "r.yaml"),
        "REPOSYNC_STATE_DIR": str(tmp_path / "state"),
        "DATABASE_URL": "postgresql://u:hush@db/reposync",
        "REDIS_URL": "redis://:hush@redis:6379/1",
        "QDRANT_URL": "https://qdrant:6333/",
        "QDRANT_API_KEY": "hush-key",
        "REPOSYNC_API_TOKEN": f"read:hush-for-one-1234, {twice},hush-for-three-12,{twice},",
        "POD_NAME": "pod-1",
        "REPOSYNC_LOG_FORMAT": "json",
    }
    settings = Settings.from_environment(environ)

    assert (settings.config_path, settings.state_dir) == (tmp_path / "r.yaml", tmp_path / "state")
    assert (settings.database_url, settings.redis_url) == (environ["DATABASE_URL"], environ["REDIS_URL"])
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
    relative = Settings.from_environment({"DATABASE_URL": "sqlite:///x.db"})

    assert parse_address(state.database_url) == SqliteAddress(tmp_path / folder / "reposync.db")
    assert parse_address(relative.database_url) == SqliteAddress(tmp_path / "work/x.db")


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("REPOSYNC_CONFIG", "gone.yaml", "names gone.yaml, which is no file"),
        ("REPOSYNC_CONFIG", ".", "names ., which is no file"),
        ("REPOSYNC_STATE_DIR", "/dev/null", "is /dev/null, which is not a folder"),
        ("DATABASE_URL", "mysql://u:hush@h/d", "must start with postgresql:// or sqlite://"),
        ("REDIS_URL", "redis+sentinel://h:26379/mymaster", "of a Sentinel or Cluster name a service"),
        ("REDIS_URL", "http://h", "must be redis://, rediss:// or unix://"),
        ("REDIS_URL", "redis://:hush@h:port", "must be redis://"),
        ("QDRANT_URL", "qdrant:6333", "must start with https:// (or http://)"),
        ("QDRANT_URL", "https://u:hush@h", "must not hold credentials"),
        ("QDRANT_API_KEY", "hu sh", "must be printable ASCII without spaces"),
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
    with pytest.raises(ConfigError) as caught:
        Settings.from_environment({"DATABASE_URL": "x", "REDIS_URL": "x", "REPOSYNC_LOG_FORMAT": "x"})

    lines = str(caught.value).splitlines()
    assert [line.split()[0] for line in lines] == ["DATABASE_URL", "REDIS_URL", "REPOSYNC_LOG_FORMAT"]
