from __future__ import annotations

from urllib.parse import quote, unquote

from hypothesis import given
from hypothesis import strategies as st
from starlette.routing import Match

from reposync.api.app import create_app
from reposync.operations.paths import PREFIX, path_of
from tests.integration.api.serving import parts_of

PARTS = st.one_of(
    st.sampled_from(["sync", "wait", "index", "repositories", "api", "v1"]),
    st.from_regex(r"[A-Za-z0-9_]{1,5}", fullmatch=True),
)
NAMES = st.lists(PARTS, min_size=1, max_size=4).map("/".join)
ROUTES = create_app(parts_of()).routes


def asked(method: str, written: str) -> tuple[str, str] | None:
    """The name of the route of a path, and the repository that it gets."""
    path = f"{PREFIX}/repositories/{written}"
    scope = {"type": "http", "method": method, "path": unquote(path), "raw_path": path.encode(), "root_path": ""}
    for route in ROUTES:
        match, found = route.matches(scope)
        if match is Match.FULL:
            return str(route.name), found["path_params"]["name"]
    return None


@given(NAMES)
def test_every_repository_can_be_reached_whatever_it_is_called(name: str) -> None:
    for written in (path_of(name), quote(name, safe="")):
        assert asked("GET", written) == ("get_repository", name)
        assert asked("GET", f"{written}/wait") == ("wait", name)
        assert asked("POST", f"{written}/sync") == ("sync", name)
        assert asked("GET", f"{written}/index") == ("repository_index", name)


@given(NAMES)
def test_a_path_means_the_same_whichever_repositories_there_are(name: str) -> None:
    assert asked("GET", f"{name}/wait") == ("wait", name)
    assert asked("GET", f"{name}/sync") is None
    assert asked("POST", f"{name}/x%2Fsync") is None
