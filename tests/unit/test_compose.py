"""compose.yaml, as far as it can be checked where no container runs: the published schema, what it expects of the
images, what it says to the program, and its commands and health checks where their programs are here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from reposync.config.database_url import PostgresqlAddress, parse_address
from reposync.config.loading import load_registry
from reposync.config.references import InterpolationError, interpolate
from reposync.config.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "compose.yaml"

DAEMONS = ("reposync-1", "reposync-2")
OURS = (*DAEMONS, "migrate")
SECRETS = {
    "POSTGRES_PASSWORD": "4f2b6f0c9d",
    "REDIS_PASSWORD": "77aa01cc34",
    "QDRANT_API_KEY": "c0ffee0123",
    "REPOSYNC_API_TOKEN": "operate:0123456789abcdef",
}


def compose(**variables: str) -> dict[str, Any]:
    """What Compose makes of the file: anchors and merge keys first, then the variables in every value. `${NAME:?why}`,
    which must be set, is what `${NAME}` is in a registry file; the rest means the same."""

    def walk(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: walk(value) for key, value in node.items()}
        if isinstance(node, list):
            return [walk(each) for each in node]
        return str(interpolate(re.sub(r":\?[^}]*", "", node), variables)) if isinstance(node, str) else node

    document: dict[str, Any] = walk(YAML(typ="safe").load(COMPOSE))
    return document


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return compose(**SECRETS)


@pytest.fixture(scope="module")
def services(document: dict[str, Any]) -> dict[str, Any]:
    return dict(document["services"])


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_that_is_not_set_stops_it_with_its_name(name: str) -> None:
    with pytest.raises(InterpolationError, match=name):
        compose(**{key: value for key, value in SECRETS.items() if key != name})


def test_it_holds_no_secret_and_publishes_ports_only_on_loopback(services: dict[str, Any]) -> None:
    text = COMPOSE.read_text()
    published = [port for service in services.values() for port in service.get("ports", [])]

    assert published == ["127.0.0.1:8080:8080", "127.0.0.1:8081:8080"]
    for line in text.splitlines():
        if re.search("PASSWORD|API_KEY|TOKEN|AUTH", line) and not line.startswith("#"):
            assert re.search(r"\$\{\w+(:\?|:-\})", line), line


def test_every_image_has_a_version_and_every_container_only_what_it_needs(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert re.search(r":[\w.-]*\d+\.\d+[\w.-]*$", service["image"]), f"{name}: {service['image']}"
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "cap_add" not in service and "privileged" not in service, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["logging"]["options"]["max-size"], name
        assert service["restart"] == ("no" if name == "migrate" else "unless-stopped"), name
        assert not any("docker.sock" in str(volume) for volume in service.get("volumes", [])), name
    for name in ("postgres", "redis", "qdrant"):
        assert services[name]["networks"] == ["inside"], f"{name} has no way out"


def test_it_fits_the_image(services: dict[str, Any]) -> None:
    """Its entry point, its port, the user that writes to the state folder, and the program of its health check."""
    image = (ROOT / "Dockerfile").read_text()
    user = re.search(r"^USER (\d+)", image, re.MULTILINE)
    assert user is not None
    for name in OURS:
        (state,) = [each for each in services[name]["tmpfs"] if each.startswith("/var/lib/reposync:")]
        assert f"uid={user[1]}," in state
        assert not {"entrypoint", "user"} & services[name].keys()
    assert re.search(r'^ENTRYPOINT .*"reposync"\]$', image, re.MULTILINE), "`command` is words of the program"
    assert "REPOSYNC_STATE_DIR=/var/lib/reposync" in image and "EXPOSE 8080" in image
    assert services["reposync-1"]["healthcheck"]["test"] == ["CMD", "reposync-health"]
    assert "/opt/reposync/bin/reposync-health" in image


def test_the_daemons_start_when_all_they_need_is_well_and_the_schema_is_made(services: dict[str, Any]) -> None:
    for name in DAEMONS:
        needs = {other: each["condition"] for other, each in services[name]["depends_on"].items()}
        assert needs.pop("migrate") == "service_completed_successfully"
        assert needs == dict.fromkeys(("postgres", "redis", "qdrant", "tei"), "service_healthy")
    assert services["migrate"]["command"] == ["db", "upgrade"]
    assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    for name, service in services.items():
        check = service["healthcheck"]
        assert check == {"disable": True} if name == "migrate" else check["test"][0] in ("CMD", "CMD-SHELL"), name


def test_its_registry_is_one_that_config_check_takes(services: dict[str, Any]) -> None:
    mounts = {each["target"]: each["source"] for each in services["reposync-1"]["volumes"]}
    variables = {key: str(value) for key, value in services["reposync-1"]["environment"].items()}

    loaded = load_registry(ROOT / mounts["/etc/reposync"] / "repositories.yaml", variables)

    assert [each for each in loaded.warnings if "no such folder on this machine" not in str(each)] == []
    assert loaded.registry.embedding.url == "http://tei:8080"
    assert "8080" in services["tei"]["command"]
    assert [str(each.path) for each in loaded.registry.repositories] == ["/srv/reposync"]
    assert "/srv/reposync" in mounts


# What it says to the program -----------------------------------------------------------------------------------------


def test_the_program_knows_every_variable_and_reads_them_as_they_are_meant(
    services: dict[str, Any], tmp_path: Path
) -> None:
    source = "".join(path.read_text() for path in (ROOT / "reposync").rglob("*.py"))
    registry = (ROOT / "config" / "compose" / "repositories.yaml").read_text()
    for name in OURS:
        variables = {key: str(value) for key, value in services[name]["environment"].items()}
        for variable in variables:
            assert f'"{variable}"' in source or f"${{{variable}" in registry, f"nobody reads {variable}"
        here = {"REPOSYNC_CONFIG": str(ROOT / "config/compose/repositories.yaml"), "REPOSYNC_STATE_DIR": str(tmp_path)}

        settings = Settings.from_environment(variables | here)

        address = parse_address(settings.database_url)
        assert isinstance(address, PostgresqlAddress) and address.where == "reposync on postgres:5432"
        assert (settings.pod_name, settings.qdrant_url) == (name, "http://qdrant:6333")
        assert settings.redis_url == f"redis://:{SECRETS['REDIS_PASSWORD']}@redis:6379/0"
        assert [token.role for token in settings.api_tokens] == ["operate"]
    assert len({services[name]["environment"]["POD_NAME"] for name in OURS}) == len(OURS)
    assert set(services) >= {"postgres", "redis", "qdrant", "tei"}, "the hosts of these addresses"
