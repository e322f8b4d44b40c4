"""A server with OpenAI's chat completions, for the programs that pages show."""

from __future__ import annotations

import re
from typing import Self

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.fixtures.gitlab_server.serving import ThreadedServer


class ChatServer:
    """Its model knows only the messages: it names the first function in them, and the place above that."""

    def __init__(self) -> None:
        self._server = ThreadedServer()
        self.url = self._server.url

    def __enter__(self) -> Self:
        self._server.serve(Starlette(routes=[Route("/v1/chat/completions", _complete, methods=["POST"])]))
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()


async def _complete(request: Request) -> JSONResponse:
    asked = await request.json()
    text = "\n".join(message["content"] for message in asked["messages"])
    function = re.search(r"(\S+:\d+)\ndef (\w+)", text)
    content = f"{function[2]} does, in {function[1]}." if function else "The messages have no code."
    return JSONResponse({"choices": [{"message": {"role": "assistant", "content": content}}]})
