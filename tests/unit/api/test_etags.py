from __future__ import annotations

import pytest
from fastapi import Request
from pydantic import BaseModel

from reposync.api.etags import conditional


class Shown(BaseModel):
    name: str


def request(*asked: str) -> Request:
    headers = [(b"if-none-match", each.encode("latin-1")) for each in asked]
    return Request({"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": headers})


TAG = conditional(request(), Shown(name="a")).headers["etag"]


@pytest.mark.parametrize(
    "asked", [(TAG,), (f"W/{TAG}",), ("*",), (f'"x", {TAG}',), ('"x"', TAG), (f'"a,b",W/"c", {TAG}',)]
)
def test_what_the_client_has_already_is_not_sent_again(asked: tuple[str, ...]) -> None:
    answer = conditional(request(*asked), Shown(name="a"))

    assert (answer.status_code, answer.body, answer.headers["etag"]) == (304, b"", TAG)
    assert "content-type" not in answer.headers


@pytest.mark.parametrize("asked", [(), ("",), ('"x"',), (TAG.strip('"'),), (f'"{TAG}',), (TAG[:-1],), ('"', '\xe9"')])
def test_anything_else_is_answered_in_full(asked: tuple[str, ...]) -> None:
    answer = conditional(request(*asked), Shown(name="a"))

    assert (answer.status_code, answer.body) == (200, b'{"name":"a"}')
