"""The secrets by which GitLab's webhooks are told from a stranger's."""

from __future__ import annotations

import base64
import json

import pytest

from reposync.config.configuration import Configuration
from reposync.config.effective import effective
from reposync.config.problems import RegistryErrors
from reposync.config.settings import Settings
from tests.unit.config.conftest import Load

SECRET = "a-secret-of-webhooks-1"
SIGNING = "whsec_" + base64.b64encode(b"\xff" * 32).decode()


def registry(secrets: str) -> str:
    return f"gitlab: [{{name: main, url: 'https://gitlab.example.com', {secrets}}}]\n"


def test_both_come_from_variables_and_are_shown_to_nobody(load: Load) -> None:
    text = registry("webhook_secret: '${SECRET}', webhook_signing: '${SIGNING}'")
    loaded = load(text, SECRET=f"{SECRET}\n", SIGNING=f"{SIGNING}\n")
    configuration = Configuration(Settings.from_environment({}), loaded.registry)

    assert loaded.warnings == ()
    assert {SECRET, SIGNING} <= set(configuration.secrets())
    shown = json.dumps(effective(configuration.settings, loaded), default=str)
    assert SECRET not in shown
    assert SIGNING not in shown
    assert '"webhook_secret": "***", "webhook_signing": "***"' in shown


def test_none_is_needed(load: Load) -> None:
    loaded = load(registry("webhook_secret: '${SECRET:-}', webhook_signing: null"))
    assert (loaded.registry.gitlab[0].webhook_secret, loaded.registry.gitlab[0].webhook_signing) == (None, None)


def test_one_in_the_clear_is_a_warning(load: Load) -> None:
    loaded = load(registry(f"webhook_secret: {SECRET}"))
    assert ["stands in the clear" in str(each) for each in loaded.warnings] == [True]


@pytest.mark.parametrize(
    ("secrets", "words"),
    [
        ("webhook_secret: fifteen-letters", "webhook_secret must be 16 characters at least"),
        ("webhook_secret: 'with a space in it, and long'", "printable ASCII without spaces"),
        (f"webhook_signing: {SECRET}", "webhook_signing must be whsec_ and 32 bytes"),
        (f"webhook_signing: {SIGNING[:-4]}", "must be whsec_ and 32 bytes"),
        (f"webhook_signing: {SIGNING[6:]}", "must be whsec_ and 32 bytes"),
        (f"webhook_signing: {SIGNING}!", "must be whsec_ and 32 bytes"),
    ],
)
def test_one_that_could_be_guessed_or_cannot_be_right_is_refused(load: Load, secrets: str, words: str) -> None:
    with pytest.raises(RegistryErrors) as refused:
        load(registry(secrets))
    (problem,) = refused.value.problems
    assert words in str(problem)
    assert secrets.partition(": ")[2].strip("'") not in str(problem)
