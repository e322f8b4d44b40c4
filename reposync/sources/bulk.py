"""Many blobs from a git server: bounded batches, the next one on its way while the last one is read."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from reposync.errors import SourceCorrupt
from reposync.sources.git_protocol import FetchRefused
from reposync.sources.packs import PackDamaged
from reposync.sources.port import Blob
from reposync.sources.smart_http import UploadPack
from reposync.sources.spool import ReceivedPack, SpoolFull

# One request each. Of real source files 2,000 make a pack of 3 MB, fetched in 0.5 s; more saves nothing that counts.
BATCH_BLOBS = 2_000
# What one step of a thread takes out of a pack: long enough to hide the hop, short enough to cancel at once.
STEP_BLOBS = 256
STEP_BYTES = 4 * 1024 * 1024
# A server that lacks an object refuses the whole batch and names the object; this many are left out before giving up.
MAX_MISSING = 25

_NOT_OUR_REF = re.compile(r"not our ref ([0-9a-f]{40,64})")


@dataclass(frozen=True, slots=True)
class _Fetched:
    """A batch and its pack; no pack where it would not fit into the disk space granted, see SpoolFull for
    `only_blob_bytes`."""

    shas: list[str]
    pack: ReceivedPack | None
    only_blob_bytes: int | None = None


class BlobFetcher:
    """Reads blobs by fetching them by name, which servers with protocol version 2 allow."""

    def __init__(self, server: UploadPack, *, max_missing: int = MAX_MISSING) -> None:
        self._server = server
        self._missing_left = max_missing

    async def read(
        self, shas: Sequence[str], *, max_bytes: int, unreadable: dict[str, str]
    ) -> AsyncGenerator[Blob, None]:
        """The blobs, each verified; those that the server lacks go to `unreadable` (sha -> reason).

        Raises what UploadPack.fetch raises; FetchRefused where the server gives no objects by name.
        """
        batches = deque(list(shas[at : at + BATCH_BLOBS]) for at in range(0, len(shas), BATCH_BLOBS))
        ahead: asyncio.Task[_Fetched] | None = None
        try:
            while batches or ahead is not None:
                fetched = await (ahead or self._fetch(batches.popleft(), unreadable))
                ahead = None
                if fetched.pack is None:
                    if len(fetched.shas) > 1:
                        middle = len(fetched.shas) // 2
                        batches.extendleft((fetched.shas[middle:], fetched.shas[:middle]))
                    elif fetched.only_blob_bytes is not None and fetched.only_blob_bytes > max_bytes:
                        # The one size that is believed without a hash: gigabytes of this blob have come.
                        yield Blob(fetched.shas[0], fetched.only_blob_bytes, None)
                    else:
                        unreadable[fetched.shas[0]] = "is too large to be fetched"
                    continue
                if batches:
                    ahead = asyncio.create_task(self._fetch(batches.popleft(), unreadable))
                wanted = set(fetched.shas)
                try:
                    found = fetched.pack.blobs(wanted, max_bytes=max_bytes)
                    while step := await asyncio.to_thread(partial(take_step, found)):
                        for blob in step:
                            yield blob
                except PackDamaged as error:
                    raise SourceCorrupt(f"A pack from {self._server.shown} cannot be read: {error}.") from error
                finally:
                    fetched.pack.close()
                unreadable.update(dict.fromkeys(wanted, "was not sent by the server"))
        finally:
            if ahead is not None:
                ahead.cancel()
                [result] = await asyncio.gather(ahead, return_exceptions=True)
                if isinstance(result, _Fetched) and result.pack is not None:
                    result.pack.close()

    async def _fetch(self, shas: list[str], unreadable: dict[str, str]) -> _Fetched:
        while shas:
            try:
                return _Fetched(shas, await self._server.fetch(shas))
            except SpoolFull as error:
                return _Fetched(shas, None, error.only_blob_bytes)
            except FetchRefused as error:
                found = _NOT_OUR_REF.search(str(error))
                if found is None or found[1] not in shas or self._missing_left <= 0:
                    raise
                self._missing_left -= 1
                unreadable[found[1]] = "is missing on the server"
                shas = [sha for sha in shas if sha != found[1]]
        return _Fetched([], None)


def take_step(blobs: Iterator[Blob]) -> list[Blob]:
    """The next blobs, bounded in count and bytes; empty at the end. Blocks on the disk: for a thread."""
    step: list[Blob] = []
    held_bytes = 0
    for blob in islice(blobs, STEP_BLOBS):
        step.append(blob)
        held_bytes += len(blob.content) if blob.content is not None else 0
        if held_bytes >= STEP_BYTES:
            break
    return step


async def read_steps(make: Callable[[], Iterator[Blob]]) -> AsyncGenerator[Blob, None]:
    """What the iterator that `make` returns yields, taken in a thread."""
    blobs = await asyncio.to_thread(make)
    while step := await asyncio.to_thread(partial(take_step, blobs)):
        for blob in step:
            yield blob
