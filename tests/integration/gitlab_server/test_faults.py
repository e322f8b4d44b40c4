"""What goes wrong on demand, and what the clients we know make of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime

import gitlab
import httpx
import pytest

from tests.fixtures.gitlab_server import GitLabServer, OtherHost, Project
from tests.fixtures.repositories import GitRepository
from tests.integration.gitlab_server.conftest import API, TOKEN


def test_a_rule_strikes_the_request_it_names_and_no_other(server: GitLabServer, client: httpx.Client) -> None:
    server.faults.bad_gateway(path="/repository/tree", method="GET", nth=2, times=2)

    trees = [client.get(f"{API}/repository/tree").status_code for _ in range(4)]

    assert trees == [200, 502, 502, 200]
    assert client.get(API).status_code == 200
    assert [record.fault for record in server.log] == [None, "answer 502", "answer 502", None, None]


def test_a_bad_gateway_is_html(server: GitLabServer, client: httpx.Client) -> None:
    server.faults.bad_gateway()

    assert client.get(API).headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize("size_bytes", [0, 20, 10_000])
def test_a_web_page_has_any_length_and_status_200(
    server: GitLabServer, client: httpx.Client, repository: GitRepository, announced: bool, size_bytes: int
) -> None:
    sha = next(row.sha for row in repository.ls_tree() if row.path == b"README.md")
    server.faults.web_page(size_bytes, announced=announced)

    page = client.get(f"{API}/repository/blobs/{sha}/raw")

    assert (page.status_code, len(page.content)) == (200, size_bytes)
    assert page.headers["content-type"].startswith("text/html")
    assert ("content-length" in page.headers) == announced


def test_a_listing_may_lack_rows_with_status_200(server: GitLabServer, client: httpx.Client) -> None:
    whole = client.get(f"{API}/repository/tree?recursive=true&pagination=none").json()
    server.faults.edit_rows(lambda rows: rows[:-2])

    short = client.get(f"{API}/repository/tree?recursive=true&pagination=none")

    assert short.status_code == 200
    assert short.json() == whole[:-2]


def test_rules_take_turns_and_end_when_cleared(server: GitLabServer, client: httpx.Client) -> None:
    server.faults.throttle_rack()
    server.faults.bad_gateway(times=None)
    first = [client.get(API).status_code for _ in range(3)]

    server.faults.clear()

    assert (first, client.get(API).status_code) == ([429, 502, 502], 200)


def test_rack_throttles_in_plain_text_with_all_its_headers(server: GitLabServer, client: httpx.Client) -> None:
    server.clock = lambda: 1_700_000_000.0
    server.faults.throttle_rack(retry_after_seconds=7)

    answer = client.get(API)

    assert (answer.status_code, answer.text) == (429, "Retry later\n")
    assert answer.headers["content-type"].startswith("text/plain")
    shown = {name: value for name, value in answer.headers.items() if name.startswith(("ratelimit", "retry"))}
    assert shown == {
        "ratelimit-name": "throttle_authenticated_api",
        "ratelimit-limit": "2000",
        "ratelimit-observed": "2001",
        "ratelimit-remaining": "0",
        "ratelimit-reset": "1700000007",
        "ratelimit-resettime": "Tue, 14 Nov 2023 22:13:27 GMT",
        "retry-after": "7",
    }


def test_the_application_throttles_in_json_without_a_word_of_when(server: GitLabServer, client: httpx.Client) -> None:
    server.faults.throttle_application()

    answer = client.get(API)

    words = "This endpoint has been requested too many times. Try again later."
    assert (answer.status_code, answer.json()) == (429, {"message": {"error": words}})
    assert not [name for name in answer.headers if name.startswith(("ratelimit", "retry"))]


def test_a_date_to_return_at_breaks_python_gitlab(server: GitLabServer, client: httpx.Client) -> None:
    server.clock = lambda: 1_700_000_000.0
    server.faults.throttle_http_date(retry_after_seconds=60, times=2)

    date = parsedate_to_datetime(client.get(API).headers["Retry-After"])

    assert date.timestamp() == 1_700_000_060
    with gitlab.Gitlab(server.url, private_token=TOKEN) as remote, pytest.raises(ValueError, match="Nov 2023"):
        remote.projects.get(42)


@pytest.mark.parametrize("after_bytes", [0, 10])
def test_a_cut_body_ends_the_connection_early(server: GitLabServer, client: httpx.Client, after_bytes: int) -> None:
    server.faults.cut_body(after_bytes, path="/tree")

    with pytest.raises(httpx.RemoteProtocolError):
        client.get(f"{API}/repository/tree")

    assert (server.log[0].status, server.log[0].bytes_out) == (200, after_bytes)
    assert client.get(f"{API}/repository/tree").status_code == 200


def test_a_cut_pack_breaks_the_fetch(server: GitLabServer, repository: GitRepository, client: httpx.Client) -> None:
    server.faults.cut_body(5, path=r"\.git/info/refs")

    with pytest.raises(httpx.RemoteProtocolError):
        client.get("/platform/payments-api.git/info/refs?service=git-upload-pack", auth=("x", TOKEN))


@pytest.mark.parametrize("after_bytes", [None, 0, 10])
def test_a_held_answer_waits_for_its_gate(
    server: GitLabServer, anonymous: httpx.Client, client: httpx.Client, after_bytes: int | None
) -> None:
    gate = server.faults.hold(path="/tree", after_bytes=after_bytes)

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.get, f"{API}/repository/tree")
        assert gate.arrived.wait(30)
        assert (waiting.done(), len(server.log)) == (False, 0)
        assert anonymous.get(f"{server.url}/api/v4/version").status_code == 401
        gate.open()
        answer = waiting.result(30)

    assert answer.json()[-1]["path"] == "README.md"


def test_a_client_that_gives_up_waiting_leaves_the_server_in_order(server: GitLabServer, client: httpx.Client) -> None:
    gate = server.faults.hold(path="/tree")

    with pytest.raises(httpx.ReadTimeout):
        client.get(f"{API}/repository/tree", timeout=0.05)
    gate.open()
    server.log.wait_for(lambda records: len(records) == 1)

    assert client.get(f"{API}/repository/tree").status_code == 200


def test_a_server_that_stops_lets_held_answers_go() -> None:
    with ThreadPoolExecutor(1) as threads:
        with GitLabServer() as server:
            gate = server.faults.hold()
            waiting = threads.submit(httpx.get, f"{server.url}/api/v4/version")
            assert gate.arrived.wait(30)

        assert waiting.result(30).status_code == 401


def test_the_head_moves_during_a_run(server: GitLabServer, client: httpx.Client, repository: GitRepository) -> None:
    server.faults.call(lambda: repository.commit({"late.py": b"1"}), path="/tree")

    head = client.get(f"{API}/repository/commits/HEAD").json()["id"]
    pinned = client.get(f"{API}/repository/tree", params={"ref": head}).json()
    unpinned = client.get(f"{API}/repository/tree").json()

    assert "late.py" not in [row["path"] for row in pinned]
    assert "late.py" in [row["path"] for row in unpinned]


def test_git_is_refused_everywhere_at_once(server: GitLabServer, client: httpx.Client) -> None:
    server.faults.refuse_git(403)

    git = client.get("/platform/payments-api.git/info/refs?service=git-upload-pack", auth=("x", TOKEN))

    assert (git.status_code, client.get(API).status_code) == (403, 200)


def test_a_redirect_takes_a_private_token_to_another_host_but_not_a_bearer(server: GitLabServer) -> None:
    # What python-gitlab and httpx do, and why the token is sent as Bearer.
    with OtherHost(body=b'{"id": 1}') as other:
        server.faults.redirect(other.url, times=None)

        with gitlab.Gitlab(server.url, private_token=TOKEN) as remote:
            remote.http_get("/projects/42")
        with httpx.Client(follow_redirects=True) as client:
            client.get(f"{server.url}{API}", headers={"Authorization": f"Bearer {TOKEN}"})

        leaked, kept = other.requests
    assert (leaked.path, leaked.headers["private-token"]) == (API, TOKEN)
    assert "authorization" not in kept.headers


def test_a_moved_project_redirects_get_to_its_id_and_nothing_else(
    client: httpx.Client, project: Project, server: GitLabServer
) -> None:
    project.move("platform/billing/payments")
    old = "/api/v4/projects/platform%2Fpayments-api"

    moved = client.get(f"{old}/repository/tree?recursive=true")
    changed = client.post(f"{old}/hooks", json={"url": "http://x.example"})

    assert moved.status_code == 301
    assert moved.headers["Location"] == f"{server.url}{API}/repository/tree?recursive=true"
    assert (changed.status_code, changed.json()) == (
        405,
        {"message": "Non GET methods are not allowed for moved projects"},
    )
    assert client.get(API).json()["path_with_namespace"] == "platform/billing/payments"


def test_a_deleted_project_is_not_found(client: httpx.Client, project: Project) -> None:
    project.deleted = True

    answer = client.get(f"{API}/repository/tree")

    assert (answer.status_code, answer.json()) == (404, {"message": "404 Project Not Found"})
