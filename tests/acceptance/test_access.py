"""`reposync serve` with tokens, as operators start it and as others try to get in."""

from __future__ import annotations

import httpx
import pytest

from tests.acceptance.conftest import Person
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.pods import Pod, until

pytestmark = pytest.mark.full

READER, OPERATOR = "reader-9f2c71d0a4e8", "operator-51be07c3d9aa"


def test_with_tokens_it_listens_to_everybody_under_a_path_and_lets_in_who_has_one(person: Person, pod: Pod) -> None:
    person.configures("embedding: {provider: none}\nhttp: {metrics: token}\n")
    pod.environment = {"REPOSYNC_API_TOKEN": f"read:{READER}, {OPERATOR}"}
    pod.options = ("--host", "0.0.0.0", "--root-path", "/reposync/")
    pod.start()
    until(lambda: pod.gets("/readyz").status_code == 200, details=pod.log_tail)

    def ask(method: str, path: str, token: str) -> httpx.Response:
        url = f"{pod.url}{path}".replace("0.0.0.0", "127.0.0.1")
        return httpx.request(method, url, headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_SECONDS)

    for prefix in ("", "/reposync"):
        path = f"{prefix}/api/v1/repositories"
        assert [ask("GET", path, token).status_code for token in (READER, OPERATOR, "guess-1")] == [200, 200, 401]
    assert ask("DELETE", "/api/v1/repositories/none", READER).status_code == 403
    assert ask("DELETE", "/api/v1/repositories/none", OPERATOR).status_code == 404
    assert (pod.gets("/metrics").status_code, ask("GET", "/metrics", READER).status_code) == (401, 200)
    assert pod.gets("/").headers["location"].startswith("/reposync/login")
    health = pod.health()
    assert (health["status"], sorted(health["components"])) == ("ok", ["database", "qdrant", "registry", "waits"])
    assert not pod.events("no REPOSYNC_API_TOKEN")
    assert pod.terminate() == 0
    assert READER not in "\n".join(pod.text) and OPERATOR not in "\n".join(pod.text)


def test_without_a_token_it_listens_on_loopback_and_says_so_and_other_names_get_nothing(
    person: Person, pod: Pod
) -> None:
    person.configures("embedding: {provider: none}\n")
    pod.start()
    until(lambda: pod.events("no REPOSYNC_API_TOKEN is set"), details=pod.log_tail)

    assert pod.url is not None and "127.0.0.1" in pod.url
    assert pod.gets("/readyz", headers={"Host": "rebound.example"}).status_code == 421
