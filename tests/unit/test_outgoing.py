"""Rules of outgoing connections: addresses, proxies, certificates."""

from __future__ import annotations

from pathlib import Path

import pytest

from reposync.config.loading import load_registry
from reposync.config.registry import Registry
from reposync.config.settings import Configuration, Settings
from reposync.errors import ConfigError
from reposync.outgoing import proxy_for, same_origin, ssl_context, validate_transport

PROXY = "http://proxy.example.com:3128"


@pytest.mark.parametrize(
    ("url", "environ", "goes_by"),
    [
        ("https://a.example.com", {}, None),
        ("https://a.example.com", {"HTTPS_PROXY": PROXY}, PROXY),
        ("https://a.example.com", {"https_proxy": PROXY, "HTTPS_PROXY": "http://other:1"}, PROXY),
        ("https://a.example.com", {"HTTP_PROXY": PROXY}, None),
        ("http://a.example.com", {"HTTP_PROXY": PROXY}, PROXY),
        ("http://a.example.com", {"ALL_PROXY": PROXY}, PROXY),
        ("https://a.example.com", {"ALL_PROXY": "http://other:1", "HTTPS_PROXY": PROXY}, PROXY),
        ("https://a.example.com", {"HTTPS_PROXY": "proxy.example.com:3128"}, PROXY),
        ("https://a.example.com", {"HTTPS_PROXY": " "}, None),
        ("http://localhost:6333", {"ALL_PROXY": PROXY}, None),
        ("http://127.0.0.5:6333", {"ALL_PROXY": PROXY}, None),
        ("http://[::1]:6333", {"ALL_PROXY": PROXY}, None),
    ],
)
def test_the_proxy_is_the_one_of_the_scheme(url: str, environ: dict[str, str], goes_by: str | None) -> None:
    assert proxy_for(url, environ) == goes_by


@pytest.mark.parametrize(
    ("url", "excepted", "is_direct"),
    [
        ("https://qdrant.svc.cluster.local", ".cluster.local", True),
        ("https://qdrant.svc.cluster.local", "cluster.local", True),
        ("https://qdrant.svc.cluster.local", "*.cluster.local", True),
        ("https://notcluster.local", "cluster.local", False),
        ("https://cluster.local.example.com", "cluster.local", False),
        ("https://GitLab.Example.com", "gitlab.example.COM", True),
        ("https://a.test", "b.test, a.test", True),
        ("https://a.test", "b.test a.test", True),
        ("https://a.test", "*", True),
        ("https://a.test", ",,", False),
        ("https://a.test:8443", "a.test:8443", True),
        ("https://a.test", "a.test:443", True),
        ("https://a.test:8443", "a.test:443", False),
        ("http://10.1.2.3:6333", "10.0.0.0/8", True),
        ("http://10.1.2.3:6333", "10.1.2.3", True),
        ("http://10.1.2.3:6333", "10.1.2.3:6333", True),
        ("http://10.1.2.3:6333", "10.1.2.4,11.0.0.0/8,0.1.2.3", False),
        ("http://[fd00::5]:6333", "fd00::/8", True),
        ("http://[fd00::5]:6333", "[fd00::5]:6333", True),
        ("http://[fd00::5]:6333", "[fd00::5]:6334", False),
    ],
)
def test_no_proxy_means_names_networks_and_ports(url: str, excepted: str, is_direct: bool) -> None:
    environ = {"ALL_PROXY": PROXY, "NO_PROXY": excepted}

    assert (proxy_for(url, environ) is None) == is_direct


def test_a_ca_file_goes_before_the_environment_and_that_before_mozillas_list() -> None:
    environ = {"REQUESTS_CA_BUNDLE": "/second.pem", "SSL_CERT_FILE": "/first.pem"}

    for ca_file, found, name in [
        (Path("/own.pem"), environ, "The CA file /own.pem"),
        (None, environ, "SSL_CERT_FILE .*/first.pem"),
        (None, {"REQUESTS_CA_BUNDLE": "/second.pem"}, "REQUESTS_CA_BUNDLE .*/second.pem"),
    ]:
        with pytest.raises(ConfigError, match=name):
            ssl_context(ca_file, found)
    assert ssl_context(None, {}).get_ca_certs()


@pytest.mark.parametrize("value", ["socks5h://p:1080", "ftp://p", "http://", "http://[bad", "https://p:0"])
def test_what_is_no_http_proxy_is_refused_by_the_name_of_its_variable(value: str) -> None:
    with pytest.raises(ConfigError, match="HTTPS_PROXY"):
        proxy_for("https://a.test", {"HTTPS_PROXY": value})


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("https://a.example/x", "https://a.example/y", True),
        ("https://a.example/x", "https://a.example:443/y", True),
        ("http://a.example/x", "https://a.example/y", True),
        ("https://a.example/x", "http://a.example/y", False),
        ("https://a.example/x", "https://b.example/y", False),
        ("https://a.example/x", "https://a.example:8443/y", False),
        ("http://a.example:8080/x", "https://a.example/y", False),
        ("https://a.example/x", "https://a.example.evil/y", False),
    ],
)
def test_secrets_stay_with_the_server_they_were_meant_for(old: str, new: str, same: bool) -> None:
    assert same_origin(old, new) is same


def test_a_ca_file_that_is_none_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")

    for name in ("ca.pem", "missing.pem"):
        with pytest.raises(ConfigError, match=name):
            validate_transport("https://gitlab.example.com", tmp_path / name)


def test_ca_files_of_all_services_are_read_from_the_registry(tmp_path: Path) -> None:
    file = tmp_path / "repositories.yaml"
    file.write_text(
        "embedding: {provider: tei, url: https://tei.test, ca_file: own/tei.pem}\n"
        "qdrant: {url: https://qdrant.test, ca_file: own/qdrant.pem}\n"
    )
    told = Configuration(Settings.from_environment({"HOME": str(tmp_path)}), load_registry(file).registry)

    assert told.registry.embedding.ca_file == tmp_path / "own/tei.pem"
    assert told.qdrant.ca_file == tmp_path / "own/qdrant.pem"


def test_the_password_of_a_proxy_is_a_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://worker:pass%40word@proxy:3128")
    monkeypatch.setenv("ALL_PROXY", "http://[bad:secret-too@")
    settings = Settings.from_environment({"HOME": str(tmp_path), "REPOSYNC_STATE_DIR": str(tmp_path)})

    assert "pass@word" in set(Configuration(settings, Registry()).secrets())
