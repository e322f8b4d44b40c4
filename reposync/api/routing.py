"""Routes that let nobody in, and read nothing, before they know who asks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Protocol, runtime_checkable

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from reposync.api.bounds import BodyBounds, with_body

# No route looks at the body of such a request, and none has to wait for it.
_BODILESS = ("GET", "HEAD")


@runtime_checkable
class Admission(Protocol):
    """What a dependency of a route is that lets requests in. FastAPI reads the body before it calls any dependency."""

    async def admit(self, request: Request) -> None:
        """By the head alone. Raises what refuses the request."""

    async def check_form(self, request: Request) -> None:
        """After the body came in, where the head did not prove everything. Raises what refuses the request."""


class Route(APIRoute):
    """Admits the request by its head, then reads its body within `body`, then calls the handler."""

    body: ClassVar[BodyBounds] = BodyBounds()

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        calls: list[object] = [each.call for each in self.dependant.dependencies]
        admissions = [call for call in calls if isinstance(call, Admission)]

        async def admitted(request: Request) -> Response:
            for admission in admissions:
                await admission.admit(request)
            if request.method not in _BODILESS:
                request = await self.with_body(request)
            for admission in admissions:
                await admission.check_form(request)
            return await handle(request)

        return admitted

    async def with_body(self, request: Request) -> Request:
        return await with_body(request, self.body)


class UnreadRoute(Route):
    """For handlers that find out themselves who asks, and read the body then."""

    async def with_body(self, request: Request) -> Request:
        return request


class Router(APIRouter):
    """An APIRouter whose routes are such ones."""

    def __init__(self, *, route_class: type[Route] = Route, **options: Any) -> None:
        super().__init__(route_class=route_class, **options)
