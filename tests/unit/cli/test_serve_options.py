from __future__ import annotations

import pytest
from click.testing import CliRunner

from reposync.cli.serve import serve

VARIABLES = {
    "REPOSYNC_HOST": "0.0.0.0",
    "REPOSYNC_PORT": "9000",
    "REPOSYNC_ROOT_PATH": "/reposync",
    "REPOSYNC_LOG_LEVEL": "debug",
}
DEFAULTS = {"host": "127.0.0.1", "port": 8080, "root_path": None, "log_level": "INFO"}


def options(*words: str) -> dict[str, object]:
    given = serve.make_context("serve", list(words)).params
    return {name: given[name] for name in DEFAULTS}


def test_where_and_how_serve_listens_can_be_set_by_variables_and_an_option_counts_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)

    assert options() == {"host": "0.0.0.0", "port": 9000, "root_path": "/reposync", "log_level": "DEBUG"}
    assert options("--port", "7000", "--host", "::1")["port"] == 7000
    shown = CliRunner().invoke(serve, ["--help"]).output
    assert all(name in shown for name in VARIABLES)
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
    assert options() == DEFAULTS


def test_the_variable_that_kubernetes_makes_of_a_service_named_reposync_is_no_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REPOSYNC_PORT", "tcp://10.96.0.17:80")

    assert options() == DEFAULTS
