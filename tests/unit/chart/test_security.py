"""What a pod may do, and who may read its secrets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fixtures.chart import LATEST, OLDEST, Refused, render, together
from tests.unit.chart.matrix import GITLAB, INSTALLATIONS, SERVERS

pytestmark = pytest.mark.full


def is_restricted(pod: dict[str, Any], container: dict[str, Any]) -> bool:
    """The restricted profile of Kubernetes' Pod Security Standards, as far as the chart sets anything of it."""
    context, own = pod.get("securityContext", {}), container["securityContext"]
    return (
        context["runAsNonRoot"] is True
        and context.get("runAsUser") != 0
        and (own.get("seccompProfile") or context["seccompProfile"]) == {"type": "RuntimeDefault"}
        and own["allowPrivilegeEscalation"] is False
        and own["capabilities"] == {"drop": ["ALL"]}
        and own["readOnlyRootFilesystem"] is True
        and not own.keys() & {"privileged", "procMount", "runAsUser", "seLinuxOptions"}
        and not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}
        and not any("hostPort" in port for port in container.get("ports", []))
        and not any("hostPath" in volume for volume in pod.get("volumes", []))
        and pod["automountServiceAccountToken"] is False
    )


@pytest.mark.parametrize("version", [OLDEST, LATEST])
@pytest.mark.parametrize("values", INSTALLATIONS.values(), ids=INSTALLATIONS)
def test_every_pod_passes_the_restricted_profile(values: dict[str, Any], version: str):
    pods = [pod["spec"] for pod in render(values, kube_version=version).pods()]

    assert pods
    assert all(is_restricted(pod, container) for pod in pods for container in pod["containers"])
    assert not any(pod.get("initContainers") for pod in pods)


# Tokens -------------------------------------------------------------------------------------------------------------


def test_the_chart_makes_tokens_that_the_program_accepts_and_shows_them_nowhere():
    from reposync.config.settings import api_tokens

    rendered = render()

    secrets = rendered.secrets()
    tokens = {token.role: token.secret.get_secret_value() for token in api_tokens(secrets["REPOSYNC_API_TOKEN"])}
    assert tokens == {"operate": secrets["operate"], "read": secrets["read"]}
    other_documents = rendered.notes + json.dumps([each for each in rendered.documents if each["kind"] != "Secret"])
    assert not any(secret in other_documents for secret in secrets.values())
    assert render({"annotations": {"another": "one"}}).secrets() != secrets, "each installation has its own"


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
def test_a_secret_in_the_clear_is_refused_and_not_repeated(registry: dict[str, Any]):
    with pytest.raises(Refused, match="secret in the clear") as refusal:
        render({"registry": registry})

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
