"""`helm install`, `upgrade` and `uninstall`, against an API server that keeps what it is given."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.fixtures.chart import NAME, NAMESPACE, together
from tests.fixtures.helm_process import Helm, HelmFailed
from tests.fixtures.kubernetes_api import KubernetesApi
from tests.unit.chart.matrix import FENCED, GITLAB, SERVERS


@pytest.fixture
def api() -> Generator[KubernetesApi, None, None]:
    with KubernetesApi() as api:
        yield api


@pytest.fixture
def helm(api: KubernetesApi, tmp_path: Path) -> Generator[Helm, None, None]:
    with Helm(api.kubeconfig(NAMESPACE), home=tmp_path) as helm:
        yield helm


def test_what_people_keep_outlives_upgrades_and_the_release(api: KubernetesApi, helm: Helm):
    helm.install(GITLAB)
    tokens = api.objects["Secret", f"{NAME}-token"]["data"]
    pod = api.objects["Deployment", NAME]["spec"]["template"]

    more = {"registry": {"repositories": [{"name": "handbook", "git": "https://git.example.com/handbook.git"}]}}
    helm.upgrade(together(GITLAB, more))

    assert api.objects["Secret", f"{NAME}-token"]["data"] == tokens, "who has a token may go on using it"
    assert "handbook" in api.objects["ConfigMap", f"{NAME}-registry"]["data"]["repositories.yaml"]
    assert api.objects["Deployment", NAME]["spec"]["template"] == pod, "a new repository restarts nothing"

    helm.uninstall()

    assert [kind for kind, _ in api.objects] == ["PersistentVolumeClaim"]

    helm.install(GITLAB)

    volume = api.objects["Deployment", NAME]["spec"]["template"]["spec"]["volumes"][1]
    assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in api.objects
    assert ("delete", "PersistentVolumeClaim", f"{NAME}-state") not in api.changes


def test_the_schema_is_brought_up_to_date_before_anything_changes(api: KubernetesApi, helm: Helm):
    for verb in (helm.install, helm.upgrade):
        api.changes.clear()
        verb(together(SERVERS, FENCED, {"replicas": 2}))

        # What the Job may reach, then the Job; both are gone before the first object of the release.
        assert api.changes[:4] == [
            ("apply", "NetworkPolicy", f"{NAME}-migrate"),
            ("apply", "Job", f"{NAME}-migrate"),
            ("delete", "Job", f"{NAME}-migrate"),
            ("delete", "NetworkPolicy", f"{NAME}-migrate"),
        ]
        assert ("apply", "Deployment", NAME) in api.changes[4:]


def test_a_migration_that_fails_leaves_everything_as_it_was(api: KubernetesApi, helm: Helm):
    api.jobs_fail = True

    with pytest.raises(HelmFailed, match=f"{NAME}-migrate"):
        helm.install(SERVERS)

    assert [kind for kind, _ in api.objects] == ["Job"], "it stays, for whoever looks why"
