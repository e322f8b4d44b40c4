"""Clients that request syncs as fast as they are answered: each has one connection, and sends again when it has its
answer. A process of its own, without an HTTP library: what it costs is not the server's.

    python -m benchmarks.http.load HOST PORT SECONDS CONNECTIONS JOURNAL PATH...

Each client asks the paths in an order of its own. The journal gets a line a request: path's number, when it was sent
and answered (seconds since 1970), the status, the run's id.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

Line = tuple[int, float, float, int, str]


async def client(host: str, port: int, paths: list[str], until: float, seed: int, lines: list[Line]) -> None:
    dice = random.Random(seed)
    reader, writer = await asyncio.open_connection(host, port)
    try:
        while time.time() < until:
            number = dice.randrange(len(paths))
            sent = time.time()
            writer.write(
                f"POST {paths[number]} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 0\r\n\r\n".encode("ascii")
            )
            status, answer = await read(reader)
            lines.append((number, sent, time.time(), status, str(answer.get("id", ""))))
    finally:
        writer.close()


async def read(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    length = next(int(line.partition(":")[2]) for line in head if line.lower().startswith("content-length:"))
    return int(head[0].split()[1]), json.loads(await reader.readexactly(length) or b"{}")


async def main(host: str, port: str, seconds: str, connections: str, journal: str, *paths: str) -> None:
    lines: list[Line] = []
    until = time.time() + float(seconds)
    async with asyncio.TaskGroup() as group:
        for seed in range(int(connections)):
            group.create_task(client(host, int(port), list(paths), until, seed, lines))
    await asyncio.to_thread(
        Path(journal).write_text, "".join(f"{n} {a:.6f} {b:.6f} {s} {r}\n" for n, a, b, s, r in lines)
    )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
