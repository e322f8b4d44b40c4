"""nginx with the server block of the documentation, before a server."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from reposync.config.sections import HttpConfig
from tests.docs.pages import ROOT
from tests.fixtures.network import Authority
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.pods import until
from tests.fixtures.showcase import Showcase
from tests.fixtures.supervised import free_port

NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
pytestmark = pytest.mark.skipif(NGINX is None, reason="there is no nginx")

FASTER = 20
"""All times of nginx are shorter by this, so that nobody waits for a minute: its defaults too."""
WAIT_SECONDS = 5
# Only root can be a different user than its own; others get a warning.
CONFIG = """
user root; daemon off; pid {folder}/pid; error_log {folder}/errors; worker_processes 1;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  proxy_read_timeout {default}ms; proxy_send_timeout {default}ms; send_timeout {default}ms;
  {block}
}}
"""


@pytest.fixture
def proxied(tmp_path: Path, showcase: Showcase) -> Iterator[httpx.Client]:
    """A client of nginx, below the documented path."""
    authority = Authority.make(tmp_path, "localhost")
    page = (ROOT / "docs" / "run-on-a-server.md").read_text()
    (block,) = re.findall(r"```nginx\n(.*?)```", page, re.DOTALL)
    port = free_port()
    with showcase.served(http=HttpConfig(root_path="/reposync", trusted_proxies=("127.0.0.1",))) as url:
        changes = {
            "http://127.0.0.1:8080": url,
            "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
            "tools.example.com;": "localhost;",
            "/etc/nginx/tls/tools.example.com.pem": str(authority.certificate),
            "/etc/nginx/tls/tools.example.com.key": str(authority.key),
        }
        for documented, here in changes.items():
            assert documented in block, documented
            block = block.replace(documented, here)
        block = re.sub(r"\b(\d+)s;", lambda found: f"{int(found[1]) * 1_000 // FASTER}ms;", block)
        config = CONFIG.format(folder=tmp_path, default=60_000 // FASTER, block=block)
        (tmp_path / "nginx.conf").write_text(config)
        server = subprocess.Popen([str(NGINX), "-p", str(tmp_path), "-c", "nginx.conf", "-e", "errors"])
        try:
            trusted = ssl.create_default_context(cafile=str(authority.file))
            with httpx.Client(
                base_url=f"https://localhost:{port}/reposync", verify=trusted, timeout=PATIENCE_SECONDS
            ) as client:
                until(lambda: server.poll() is not None or is_up(client))
                yield client
        finally:
            server.terminate()
            server.wait()


def is_up(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def test_a_large_push_and_a_long_wait_pass_the_documented_proxy(proxied: httpx.Client, showcase: Showcase) -> None:
    push = b'{"object_kind": "push", "x": "' + b"x" * 2_000_000 + b'"}'
    refused = proxied.post(
        "/api/v1/webhooks/gitlab", content=push, headers={"X-Gitlab-Event": "Push Hook", "X-Gitlab-Token": "unknown"}
    )
    assert (refused.status_code, "error" in refused.json()) == (403, True), "by reposync, and not by nginx"

    name = f"proxied/{showcase.next_number()}"
    showcase.register(name)
    waited = proxied.post(f"/api/v1/repositories/{name}/sync", params={"wait": WAIT_SECONDS})
    assert (waited.status_code, waited.json()["status"]) == (202, "queued"), "nobody executes it"


def test_pages_behind_the_documented_proxy_lead_to_its_own_name_and_path(proxied: httpx.Client) -> None:
    page = proxied.get("/", headers={"Accept": "text/html"})

    assert page.status_code == 200 and 'href="/reposync/runs"' in page.text
    assert "Strict-Transport-Security" not in page.headers, "the host has other pages"
