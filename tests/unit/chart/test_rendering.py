"""What Helm makes of the chart: whatever is switched on, Kubernetes takes it, and its parts fit together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import helm_python
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync import __version__
from reposync.cli.main import cli
from reposync.config.settings import Settings, api_tokens
from reposync.outgoing import CA_VARIABLES
from tests.fixtures.chart import (
    CHART,
    CUSTOM,
    LATEST,
    NAME,
    NAMESPACE,
    OLDEST,
    ROOT,
    VERSIONS,
    Refused,
    chart,
    complaints,
    render,
    together,
)
from tests.fixtures.chart import Rendered as Rendering
from tests.unit.chart.matrix import (
    DATABASE,
    FEATURES,
    FENCED,
    GITLAB,
    INGRESS,
    INSTALLATIONS,
    MONITORED,
    PRIVATE,
    QDRANT,
    SCALED,
    SERVERS,
    SIGN_IN,
)

pytestmark = pytest.mark.full


def wrong(rendered: Rendering, version: str) -> list[str]:
    return [
        f"{each['kind']} {each['metadata']['name']}: {complaint}"
        for each in rendered.documents
        if each["apiVersion"] != CUSTOM
        for complaint in complaints(each, version)
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", INSTALLATIONS.values(), ids=INSTALLATIONS)
def test_kubernetes_accepts_every_document(values: dict[str, Any], version: str):
    rendered = render(values, kube_version=version)

    assert wrong(rendered, version) == []
    names = [(each["kind"], each["metadata"]["name"]) for each in rendered.documents]
    assert len(names) == len(set(names))
    assert {each["metadata"]["namespace"] for each in rendered.documents} == {NAMESPACE}
    assert_parts_fit(rendered)


@given(st.sets(st.sampled_from(sorted(FEATURES)), max_size=8))
def test_any_set_of_features_is_rendered_or_refused_in_words(names: set[str]):
    try:
        rendered = render(together(*(FEATURES[name] for name in sorted(names))))
    except Refused as refusal:
        assert "\n- " in str(refusal) and "nil pointer" not in str(refusal)
        return
    assert wrong(rendered, LATEST) == []
    assert_parts_fit(rendered)


def assert_parts_fit(rendered: Rendering) -> None:
    deployment, service = rendered.one("Deployment"), rendered.one("Service")
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels
    assert service["spec"]["selector"].items() <= labels
    named = {port["name"]: port["containerPort"] for port in rendered.container["ports"]}
    assert f"--port={named['http']}" in rendered.container["args"]
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= named.keys()
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert rendered.container[probe]["httpGet"]["port"] in named
    volumes = {volume["name"] for volume in rendered.pod["volumes"]}
    assert {mount["name"] for mount in rendered.container["volumeMounts"]} <= volumes
    for each in rendered.all("PodDisruptionBudget"):
        assert each["spec"]["selector"]["matchLabels"].items() <= labels
    for each in rendered.all("ServiceMonitor"):
        assert each["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert {endpoint["port"] for endpoint in each["spec"]["endpoints"]} <= {
            port["name"] for port in service["spec"]["ports"]
        }
    for each in rendered.all("HorizontalPodAutoscaler"):
        assert each["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
        assert "replicas" not in deployment["spec"]
    for each in rendered.all("Ingress"):
        for rule in each["spec"]["rules"]:
            backend = rule["http"]["paths"][0]["backend"]["service"]
            assert backend == {"name": service["metadata"]["name"], "port": {"name": "http"}}
    pods = [(pod["metadata"]["labels"], pod["spec"]["containers"][0]["name"]) for pod in rendered.pods()]
    for each in rendered.all("NetworkPolicy"):
        selector = each["spec"]["podSelector"]["matchLabels"].items()
        chosen = [container for labels, container in pods if selector <= labels.items()]
        assert chosen == (["migrate"] if each["metadata"]["name"].endswith("-migrate") else ["reposync"])
    for volume in rendered.pod["volumes"]:
        claim = volume.get("persistentVolumeClaim", {}).get("claimName")
        assert claim in (None, "mine", *(each["metadata"]["name"] for each in rendered.all("PersistentVolumeClaim")))


# The two modes ------------------------------------------------------------------------------------------------------


def test_with_nothing_set_there_is_one_pod_with_a_volume_that_outlives_the_release():
    rendered = render()

    deployment, claim = rendered.one("Deployment"), rendered.one("PersistentVolumeClaim")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}, "two pods must not have one volume"
    (state,) = (each for each in rendered.pod["volumes"] if each["name"] == "state")
    assert state["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert {each["kind"] for each in rendered.documents} == {
        *("ConfigMap", "Deployment", "PersistentVolumeClaim", "Pod", "Secret", "Service", "ServiceAccount")
    }
    assert not {"REPOSYNC_DATABASE_URL", "REPOSYNC_REDIS_URL", "REPOSYNC_QDRANT_URL"} & rendered.environment().keys()
    assert not rendered.has("Job"), "the program creates its own database"
    assert rendered.environment()["POD_NAME"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    context = rendered.pod["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (10001, 10001, 10001)
    assert f"port-forward service/{NAME}" in rendered.notes
    assert f"get secret {NAME}-token" in rendered.notes
    assert "The registry is empty" in rendered.notes and "WARNING" not in rendered.notes


def test_with_servers_there_are_pods_that_are_replaced_one_by_one_and_spread():
    rendered = render(together(SERVERS, {"replicas": 3}))

    spec = rendered.one("Deployment")["spec"]
    assert spec["replicas"] == 3
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    assert not rendered.has("PersistentVolumeClaim")
    assert [each["topologyKey"] for each in rendered.pod["topologySpreadConstraints"]] == [
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    ]
    labels = spec["template"]["metadata"]["labels"].items()
    for each in rendered.pod["topologySpreadConstraints"]:
        assert each["labelSelector"]["matchLabels"].items() <= labels
    assert rendered.one("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert rendered.environment()["REPOSYNC_DATABASE_URL"] == {"secretKeyRef": {"name": "postgresql", "key": "uri"}}
    assert rendered.environment()["REPOSYNC_REDIS_URL"] == {"secretKeyRef": {"name": "redis", "key": "REDIS_URL"}}
    assert rendered.environment()["REPOSYNC_QDRANT_URL"] == QDRANT["qdrant"]["url"]


@pytest.mark.parametrize("values", [DATABASE, QDRANT], ids=["database", "index"])
def test_what_is_not_elsewhere_lies_in_the_volume_of_one_pod(values: dict[str, Any]):
    rendered = render(values)
    assert rendered.has("PersistentVolumeClaim")
    assert rendered.one("Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    assert not rendered.has("PodDisruptionBudget"), "it would keep the node from being drained"
    named = {"registry": {"qdrant": {"url": "http://qdrant:6333"}}}
    assert render(together(DATABASE, named)).one("Deployment")["spec"]["strategy"]["type"] == "RollingUpdate"


@pytest.mark.parametrize("version", [OLDEST, LATEST])
@pytest.mark.parametrize("name", ["nothing set", "many pods, everything"])
def test_the_linter_finds_nothing(name: str, version: str):
    found = helm_python.lint(CHART, INSTALLATIONS[name], strict=True, kube_version=f"v{version}", namespace=NAMESPACE)
    assert found["messages"] == []


def test_a_private_authority_and_a_proxy_reach_the_program():
    rendered = render(PRIVATE)
    environment = rendered.environment()
    (mount,) = (each for each in rendered.container["volumeMounts"] if each["name"] == "ca")
    assert environment["SSL_CERT_FILE"] == f"{mount['mountPath']}/ca.crt"
    assert environment["HTTPS_PROXY"] == "http://proxy:3128"
    assert environment["NO_PROXY"].split(",")[-3:] == [".svc", ".cluster.local", "qdrant.example.com"]
    image = f"registry.example.com:5000/tools/reposync@sha256:{'0' * 64}"
    assert {container["image"] for pod in rendered.pods() for container in pod["spec"]["containers"]} == {image}
    assert all(pod["spec"]["imagePullSecrets"] == [{"name": "pull"}] for pod in rendered.pods())


@pytest.mark.parametrize("root_path", ["/reposync", ""])
def test_the_ingress_leads_to_the_path_that_the_program_knows(root_path: str):
    rendered = render(together(INGRESS, {"registry": {"http": {"root_path": root_path}}}))
    (rule,) = rendered.one("Ingress")["spec"]["rules"]
    assert rule["host"] == "tools.example.com"
    assert [path["path"] for path in rule["http"]["paths"]] == [root_path or "/"]
    assert f"https://tools.example.com{root_path}/" in rendered.notes


def test_a_long_name_still_fits():
    rendered = render({"fullnameOverride": "a" * 50, **together(MONITORED, SCALED, SERVERS, FENCED)})
    assert all(len(each["metadata"]["name"]) <= 63 for each in rendered.documents)


def test_the_chart_is_of_this_version():
    assert chart().metadata["appVersion"] == __version__
    assert render().container["image"] == f"reposync:{__version__}"


@pytest.mark.parametrize(
    "values",
    [{}, SERVERS, {"server": {"workers": False, "scheduler": False, "logLevel": "DEBUG", "port": 9000, "host": "::"}}],
    ids=["nothing set", "servers", "server"],
)
def test_the_program_accepts_the_arguments_of_its_pods(values: dict[str, Any]):
    for pod in render(values).pods():
        words = list(pod["spec"]["containers"][0].get("args", []))
        command: click.Command | None = cli
        while words and isinstance(command, click.Group):
            command = command.get_command(click.Context(command), words.pop(0))
        assert command is not None
        if command is not cli:
            command.make_context("reposync", words)


def test_the_program_knows_every_variable_of_its_pods():
    class Asked(dict[str, str]):
        def get(self, name: str, *default: Any) -> Any:
            self.setdefault(name, "")
            return super().get(name, *default)

    asked = Asked()
    Settings.from_environment(asked)
    pods = render(together(SERVERS, GITLAB, PRIVATE)).pods()
    named = {each["name"] for pod in pods for container in pod["spec"]["containers"] for each in container["env"]}
    # The registry's own, what was added by hand (asyncpg reads it), and what the image's own health command reads.
    others = {"GITLAB_TOKEN", "PGSSLROOTCERT", "REPOSYNC_HEALTH_URL"}
    assert named - asked.keys() - {"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", *CA_VARIABLES} == others
    assert "REPOSYNC_HEALTH_URL" in (ROOT / ".ci" / "image" / "health.py").read_text()


def test_the_package_holds_the_chart_and_nothing_else(tmp_path: Path):
    archive = helm_python.package(CHART, destination=tmp_path)
    with helm_python.Chart.load(archive) as packed, helm_python.Chart.load(CHART) as tree:
        kept = {each["name"]: each["data"] for each in packed.templates}
        assert kept == {each["name"]: each["data"] for each in tree.templates}
        assert {each["name"] for each in packed.files} == {"README.md", ".helmignore", "dashboards/reposync.json"}
        assert packed.schema == tree.schema


def test_a_fence_lets_in_the_port_and_out_what_was_named():
    policy = render(together(FENCED, SERVERS, {"replicas": 2})).one("NetworkPolicy", NAME)["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["ingress"] == [
        {"ports": [{"protocol": "TCP", "port": "http"}], "from": FENCED["networkPolicy"]["ingress"]["from"]}
    ]
    assert [{port["port"] for port in rule["ports"]} for rule in policy["egress"]] == [{53}, {443}, {5432}]
    closed = {"networkPolicy": {"enabled": True, "egress": {"dns": False, "ports": [], "rules": []}}}
    assert render(closed).one("NetworkPolicy")["spec"]["egress"] == []


def test_the_registry_is_mounted_as_a_folder_so_that_a_change_arrives():
    rendered = render()
    (mount,) = (each for each in rendered.container["volumeMounts"] if each["name"] == "registry")
    (volume,) = (each for each in rendered.pod["volumes"] if each["name"] == "registry")
    assert "subPath" not in mount
    assert volume["configMap"]["name"] == rendered.one("ConfigMap")["metadata"]["name"]
    assert rendered.environment()["REPOSYNC_CONFIG"] == f"{mount['mountPath']}/repositories.yaml"


@pytest.mark.parametrize(
    ("values", "warning"),
    [
        ({"persistence": {"enabled": False}}, "history, registrations and index are lost"),
        (together(DATABASE, {"persistence": {"enabled": False}}), "the index is lost"),
        (together(INGRESS, {"registry": {"http": {"trusted_proxies": []}}}), "trusted_proxies is empty"),
    ],
)
def test_the_notes_warn_of_what_is_allowed_and_unwise(values: dict[str, Any], warning: str):
    assert warning in render(values).notes.partition("WARNING: ")[2]
    assert "WARNING" not in render(together(SERVERS, INGRESS)).notes


# Upgrades -----------------------------------------------------------------------------------------------------------


def test_the_migration_goes_first_and_needs_nothing_that_the_chart_makes():
    rendered = render(together(SERVERS, GITLAB, FENCED, {"replicas": 2}))

    job = rendered.one("Job")
    annotations = job["metadata"]["annotations"]
    assert annotations["helm.sh/hook"] == "pre-install,pre-upgrade"
    policy = next(each for each in rendered.all("NetworkPolicy") if each["metadata"]["name"].endswith("-migrate"))
    assert int(policy["metadata"]["annotations"]["helm.sh/hook-weight"]) < int(annotations["helm.sh/hook-weight"])
    made = {
        each["metadata"]["name"]
        for each in rendered.documents
        if "helm.sh/hook" not in each["metadata"].get("annotations", {})
        and each["kind"] in ("ConfigMap", "Secret", "ServiceAccount", "PersistentVolumeClaim")
    }
    assert made
    spec = json.dumps(job["spec"]["template"]["spec"])
    assert [name for name in made if f'"{name}"' in spec] == []
    assert "GITLAB_TOKEN" not in spec, "it needs no more than the database"
    assert not render(together(SERVERS, {"migration": {"enabled": False}})).has("Job")


def pod_of(values: dict[str, Any]) -> dict[str, Any]:
    return render(values).one("Deployment")["spec"]["template"]


def test_a_new_version_of_the_chart_alone_restarts_nothing():
    assert "helm.sh/chart" not in pod_of({})["metadata"]["labels"]
    assert "helm.sh/chart" in render().one("Deployment")["metadata"]["labels"]


def test_a_change_of_repositories_restarts_nothing():
    changed = together(GITLAB, {"registry": {"daemon": {"concurrency": 8}, "defaults": {"exclude": ["*.snap"]}}})
    changed["registry"]["repositories"] = []

    assert pod_of(changed) == pod_of(GITLAB)
    assert render(changed).registry != render(GITLAB).registry
    assert pod_of(together(GITLAB, {"registry": {"http": {"allow_local_sources": True}}})) == pod_of(GITLAB)


@pytest.mark.parametrize(
    "change",
    [
        {"embedding": {"provider": "none"}},
        {"qdrant": {"timeout_seconds": 5}},
        {"http": {"root_path": "/reposync"}},
        {"daemon": {"lock_watchdog_seconds": 60}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_the_program_reads_once_restarts_the_pods(change: dict[str, Any]):
    assert pod_of(together(GITLAB, {"registry": change})) != pod_of(GITLAB)


# What a pod may do, and who may read its secrets ------------------------------------------------------------------


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


def test_a_cluster_may_choose_the_user_itself():
    values = {"podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}}
    assert not {"runAsUser", "runAsGroup", "fsGroup"} & render(values).pod["securityContext"].keys()


def test_what_the_program_writes_lies_in_volumes():
    for each in (render(), render(SERVERS)):
        written = {mount["mountPath"]: mount["name"] for mount in each.container["volumeMounts"]}
        assert written[each.environment()["REPOSYNC_STATE_DIR"]] == "state"
        assert written["/tmp"] == "tmp"
        assert all("readOnly" not in mount for mount in each.container["volumeMounts"] if mount["name"] != "registry")


# Tokens -------------------------------------------------------------------------------------------------------------


def test_with_a_secret_of_ones_own_the_chart_makes_none():
    rendered = render({"auth": {"existingSecret": "mine", "key": "tokens"}})
    assert not rendered.has("Secret")
    assert rendered.environment()["REPOSYNC_API_TOKEN"] == {"secretKeyRef": {"name": "mine", "key": "tokens"}}


def test_the_chart_makes_tokens_that_the_program_accepts_and_shows_them_nowhere():
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
    servers = ("REPOSYNC_DATABASE_URL", "REPOSYNC_REDIS_URL", "REPOSYNC_QDRANT_API_KEY")
    for name in (*servers, "GITLAB_TOKEN", "REPOSYNC_API_TOKEN"):
        assert "secretKeyRef" in environment[name]
    assert "${GITLAB_TOKEN}" in rendered.registry
    assert not any("TOKEN" in word or "://" in word for word in rendered.container["args"])


def test_the_secret_of_the_sign_in_at_gitlab_has_a_value_of_its_own():
    rendered = render(SIGN_IN)

    reference = {"secretKeyRef": {"name": "gitlab-application", "key": "GITLAB_SIGN_IN_SECRET"}}
    assert rendered.environment()["GITLAB_SIGN_IN_SECRET"] == reference
    assert "client_secret: ${GITLAB_SIGN_IN_SECRET}" in rendered.registry
    assert "GITLAB_SIGN_IN_SECRET" not in render(GITLAB).environment()


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
        {"http": {"sign_in": {"client_id": "a", "client_secret": SECRET}}},
        {"http": {"tokens": [{"name": "search", "token": SECRET, "repositories": ["a/**"]}]}},
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
