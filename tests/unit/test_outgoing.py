"""Which way a request goes, and how long its answer may take: the rules alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from reposync import outgoing
from reposync.app.application import embedder_config, index_settings
from reposync.config.loading import load_registry
from reposync.config.registry import Registry
from reposync.config.settings import Configuration, Settings
from reposync.errors import ConfigError
from reposync.outgoing import Pace, TooLarge, TooSlow, authorities, check_unfolded, proxy_for

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

    assert authorities(Path("/own.pem"), environ) == Path("/own.pem")
    assert authorities(None, environ) == Path("/first.pem")
    assert authorities(None, {"REQUESTS_CA_BUNDLE": "/second.pem"}) == Path("/second.pem")
    assert authorities(None, {}).name == "cacert.pem"


@pytest.mark.parametrize("value", ["socks5h://p:1080", "ftp://p", "http://", "http://[bad", "https://p:0"])
def test_what_is_no_http_proxy_is_refused_by_the_name_of_its_variable(value: str) -> None:
    with pytest.raises(ConfigError, match="HTTPS_PROXY"):
        proxy_for("https://a.test", {"HTTPS_PROXY": value})


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_an_answer_is_given_up_where_it_drips_or_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(outgoing, "time", clock)

    quick = Pace(window_seconds=60, total_seconds=600)
    for _ in range(59):
        quick.took(10)  # an answer that is short and slow is over before anybody judges it
        clock.now += 1

    dripping = Pace(window_seconds=60, total_seconds=600)
    with pytest.raises(TooSlow, match="bytes came in 60 s"):
        for _ in range(61):
            dripping.took(900)
            clock.now += 1

    endless = Pace(window_seconds=60, total_seconds=600)
    with pytest.raises(TooSlow, match="within 600 s"):
        for _ in range(700):
            endless.took(1_000_000)
            clock.now += 1


def test_what_unfolds_a_hundred_times_is_a_bomb_once_it_is_large() -> None:
    check_unfolded(100, 16 << 20)  # small: a listing of many equal rows
    check_unfolded(10 << 20, 100 << 20)
    with pytest.raises(TooLarge, match="unfold"):
        check_unfolded(100_000, 17 << 20)


def test_ca_files_of_all_services_are_read_from_the_registry(tmp_path: Path) -> None:
    file = tmp_path / "repositories.yaml"
    file.write_text(
        "embedding: {provider: tei, url: https://tei.test, ca_file: own/tei.pem}\n"
        "qdrant: {url: https://qdrant.test, ca_file: own/qdrant.pem}\n"
    )
    told = Configuration(Settings.from_environment({"HOME": str(tmp_path)}), load_registry(file).registry)

    assert embedder_config(told.registry).ca_file == tmp_path / "own/tei.pem"
    assert index_settings(told, "code").ca_file == tmp_path / "own/qdrant.pem"


def test_the_password_of_a_proxy_is_a_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://worker:pass%40word@proxy:3128")
    monkeypatch.setenv("ALL_PROXY", "http://[bad:secret-too@")
    settings = Settings.from_environment({"HOME": str(tmp_path), "REPOSYNC_STATE_DIR": str(tmp_path)})

    assert "pass@word" in set(Configuration(settings, Registry()).secrets())
