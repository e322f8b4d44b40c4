"""Taking an address and a port, with an answer that helps where they cannot be had."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket

from reposync.errors import UsageError

_RESOLVE_SECONDS = 10.0


async def listen(host: str, port: int, *, backlog: int) -> socket.socket:
    """A listening socket. Raises UsageError that says what is wrong with the address."""
    if not 0 <= port <= 65_535:
        raise UsageError(f"{port} is no port.", remedy="Ports go from 0, which takes a free one, to 65535.")
    problem: OSError | None = None
    for family, address in await _addresses(host, port):
        try:
            return _bound(family, address, backlog)
        except OSError as error:
            # The next address only where the machine lacks this one, as a container without IPv6 lacks ::1.
            problem = problem or error
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                break
    raise _refusal(host, port, problem) from problem


async def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[object, ...]]]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_RESOLVE_SECONDS):
            found = await loop.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
            )
    except (OSError, ValueError) as error:
        # OSError: nobody knows the name; it is also what a time-out is. ValueError: it cannot be a name.
        raise UsageError(
            f"{host!r} is neither an address nor a name that can be resolved.",
            remedy="Use 127.0.0.1 for this machine alone, or 0.0.0.0 for every address it has.",
        ) from error
    # 127.0.0.1 before ::1 for `localhost`: more clients try it.
    return sorted(((family, address) for family, _, _, _, address in found), key=lambda each: each[0] != socket.AF_INET)


def _bound(family: socket.AddressFamily, address: tuple[object, ...], backlog: int) -> socket.socket:
    # The protocol by name: asyncio switches Nagle's delay off only where it reads TCP there, and each answer whose head
    # and body are two writes would otherwise take 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # A port that the last daemon left a second ago is free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and address[0] == "::":
            with contextlib.suppress(OSError):
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
        # Two sockets may bind the same port with SO_REUSEADDR; only here the second one hears of the first.
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _refusal(host: str, port: int, problem: OSError | None) -> UsageError:
    code = problem.errno if problem else None
    if code == errno.EADDRINUSE:
        return UsageError(
            f"Port {port} of {host or 'this machine'} is taken by another process.",
            remedy="Is a daemon running already? Stop it, or choose another port with --port (0 takes a free one).",
        )
    if code in (errno.EACCES, errno.EPERM):
        return UsageError(
            f"This user may not listen on port {port} of {host or 'this machine'}.",
            remedy="Ports below 1024 usually belong to root: choose another one with --port.",
        )
    if code in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
        return UsageError(
            f"{host} is no address of this machine.",
            remedy="Use 127.0.0.1 for this machine alone, or 0.0.0.0 for every address it has.",
        )
    reason = problem.strerror if problem else "it has no address"
    return UsageError(f"Cannot listen on port {port} of {host or 'this machine'}: {reason}.", remedy="Choose another.")
