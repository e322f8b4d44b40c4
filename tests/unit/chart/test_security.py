"""What a pod may do, and who may read its secrets."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.fixtures.chart import LATEST, OLDEST, Refused, render, together
from tests.unit.chart.matrix import GITLAB, INSTALLATIONS, SERVERS
from tests.unit.chart.restricted import violations


@pytest.mark.parametrize("version", [OLDEST, LATEST])
@pytest.mark.parametrize("values", INSTALLATIONS.values(), ids=INSTALLATIONS)
def test_every_pod_passes_the_restricted_profile(values: dict[str, Any], version: str):
    pods = list(render(values, kube_version=version).pods())

    assert pods
    assert [violation for pod in pods for violation in violations(pod["spec"])] == []


def _on_container(**change: Any) -> Callable[[dict[str, Any]], None]:
    return lambda spec: spec["containers"][0]["securityContext"].update(change)


def _on_pod(**change: Any) -> Callable[[dict[str, Any]], None]:
    return lambda spec: spec["securityContext"].update(change)


@pytest.mark.parametrize(
    "spoil",
    [
        _on_container(allowPrivilegeEscalation=True),
        _on_container(capabilities={}),
        _on_container(capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
        _on_container(privileged=True),
        _on_container(runAsUser=0),
        _on_container(runAsNonRoot=False),
        _on_container(seccompProfile={"type": "Unconfined"}),
        _on_container(procMount="Unmasked"),
        _on_pod(runAsUser=0),
        _on_pod(seccompProfile=None),
        _on_pod(sysctls=[{"name": "kernel.msgmax", "value": "1"}]),
        _on_pod(seLinuxOptions={"type": "spc_t"}),
        _on_pod(appArmorProfile={"type": "Unconfined"}),
        lambda spec: spec.update(hostNetwork=True),
        lambda spec: spec["volumes"].append({"name": "host", "hostPath": {"path": "/"}}),
        lambda spec: spec["containers"][0]["ports"].append({"containerPort": 1, "hostPort": 1}),
        lambda spec: spec.update(initContainers=[{"name": "first"}]),
        lambda spec: spec["containers"][0]["livenessProbe"]["httpGet"].update(host="169.254.169.254"),
    ],
)
def test_the_profile_that_these_tests_know_refuses_what_it_should(spoil: Callable[[dict[str, Any]], None]):
    spec = copy.deepcopy(render().pod)
    spoil(spec)

    assert list(violations(spec))


@pytest.mark.parametrize("values", INSTALLATIONS.values(), ids=INSTALLATIONS)
def test_pods_have_no_credentials_of_kubernetes_and_a_root_file_system_that_is_read_only(values: dict[str, Any]):
    for pod in render(values).pods():
        assert pod["spec"]["automountServiceAccountToken"] is False
        for container in pod["spec"]["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_what_the_program_writes_lies_in_volumes():
    for each in (render(), render(SERVERS)):
        written = {mount["mountPath"]: mount["name"] for mount in each.container["volumeMounts"]}
        assert written[each.environment()["REPOSYNC_STATE_DIR"]] == "state"
        assert written["/tmp"] == "tmp"
        assert all("readOnly" not in mount for mount in each.container["volumeMounts"] if mount["name"] != "registry")


def test_the_group_of_the_volume_is_the_programs_own():
    context = render().pod["securityContext"]

    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (10001, 10001, 10001)


def test_a_cluster_that_chooses_the_user_itself_may():
    values = {"podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}}

    assert not {"runAsUser", "runAsGroup", "fsGroup"} & render(values).pod["securityContext"].keys()


# Tokens -------------------------------------------------------------------------------------------------------------


def test_the_chart_makes_tokens_that_the_program_accepts_and_shows_them_nowhere():
    from reposync.config.settings import api_tokens

    rendered = render()

    secrets = rendered.secrets()
    tokens = {token.role: token.secret.get_secret_value() for token in api_tokens(secrets["REPOSYNC_API_TOKEN"])}
    assert tokens == {"operate": secrets["operate"], "read": secrets["read"]}
    elsewhere = rendered.notes + json.dumps([each for each in rendered.documents if each["kind"] != "Secret"])
    assert not any(secret in elsewhere for secret in secrets.values())
    assert render({"annotations": {"another": "one"}}).secrets() != secrets, "each installation has its own"


def test_with_a_secret_of_ones_own_the_chart_makes_none():
    rendered = render({"auth": {"existingSecret": "mine", "key": "tokens"}})

    assert not rendered.has("Secret")
    assert rendered.environment()["REPOSYNC_API_TOKEN"] == {"secretKeyRef": {"name": "mine", "key": "tokens"}}


def test_secrets_are_named_and_never_written_down():
    rendered = render(together(SERVERS, GITLAB))

    environment = rendered.environment()
    for name in ("DATABASE_URL", "REDIS_URL", "QDRANT_API_KEY", "GITLAB_TOKEN", "REPOSYNC_API_TOKEN"):
        assert "secretKeyRef" in environment[name]
    assert "${GITLAB_TOKEN}" in rendered.registry
    assert not any("TOKEN" in word or "://" in word for word in rendered.container["args"])


SECRET = "glpat-Abcdefgh12345678"


@pytest.mark.parametrize(
    "registry",
    [
        {"gitlab": [{"name": "main", "url": "https://gitlab.example.com", "token": SECRET}]},
        {"gitlab": [{"name": "main", "url": "https://gitlab.example.com", "webhook_secret": SECRET}]},
        {"gitlab": [{"name": "main", "url": "https://gitlab.example.com", "token": f"${{TOKEN:-{SECRET}}}"}]},
        {"repositories": [{"name": "h", "git": "https://git.example.com/h.git", "password": SECRET}]},
        {"repositories": [{"name": "h", "git": f"https://reader:{SECRET}@git.example.com/h.git"}]},
        {"embedding": {"provider": "openai", "model": "m", "api_key": SECRET}},
        {"qdrant": {"url": "https://qdrant.example.com", "api_key": SECRET}},
    ],
)
@pytest.mark.parametrize("as_text", [False, True], ids=["keys", "text"])
def test_a_secret_in_the_clear_is_refused_and_not_repeated(registry: dict[str, Any], as_text: bool):
    with pytest.raises(Refused, match="secret in the clear") as refusal:
        render({"registry": json.dumps(registry) if as_text else registry})

    assert "secretEnv" in str(refusal.value)
    assert SECRET not in str(refusal.value)


@pytest.mark.parametrize(
    ("values", "instead"),
    [
        ({"redis": {"url": f"redis://:{SECRET}@redis"}}, "redis.existingSecret"),
        ({"qdrant": {"url": f"https://me:{SECRET}@qdrant"}}, "qdrant.apiKey.existingSecret"),
        ({"proxy": {"https": f"http://me:{SECRET}@proxy:3128"}}, "secretEnv.HTTPS_PROXY"),
    ],
)
def test_an_address_with_a_password_goes_into_a_secret(values: dict[str, Any], instead: str):
    with pytest.raises(Refused, match="holds credentials") as refusal:
        render(values)

    assert instead in str(refusal.value)
    assert SECRET not in str(refusal.value)


def test_a_proxy_with_a_password_comes_from_a_secret():
    values = {"secretEnv": {"HTTPS_PROXY": {"secret": "proxy", "key": "url"}}}

    assert render(values).environment()["HTTPS_PROXY"] == {"secretKeyRef": {"name": "proxy", "key": "url"}}
