"""Group commit: writes that arrive together share one flush."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from reposync.vectors.engine.collections import Collection
from reposync.vectors.engine.refusal import Refusal

# A flush costs about 16 ms for its fsyncs, and 2.5 ms more for each batch of 256 points since the last one, while a
# batch takes about 50 ms to be read and applied: waiting for a write that is already arriving pays, waiting for long
# does not.
LONGEST_WAIT_SECONDS = 0.2
# Accept, read, parse, begin to answer: one turn of the event loop each.
_TURNS_TO_SEE_ARRIVALS = 5


class GroupFlush:
    """Answers writers after their points are on the disk, flushing once for all that wait.

    A flush waits while another write is being received, and no longer than LONGEST_WAIT_SECONDS.
    """

    def __init__(self) -> None:
        self._arriving = 0
        self._waiting: list[tuple[Collection, asyncio.Future[None]]] = []
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """While a write is being received and applied."""
        self._arriving += 1
        try:
            yield
        finally:
            self._arriving -= 1
            self._settle()

    async def durable(self, collection: Collection) -> None:
        """Returns when everything applied to the collection so far survives a power cut.

        Raises Refusal where the disk refuses.
        """
        loop = asyncio.get_running_loop()
        flushed = loop.create_future()
        self._waiting.append((collection, flushed))
        if self._timer is None:
            self._timer = loop.call_later(LONGEST_WAIT_SECONDS, self._flush)
        self._settle()
        await flushed

    def _settle(self, turns: int = _TURNS_TO_SEE_ARRIVALS) -> None:
        """Flush, if nothing has arrived after some turns of the event loop: while a write was applied nothing was
        read, and what came in meanwhile is only now seen."""
        if self._arriving or not self._waiting:
            return
        if turns:
            asyncio.get_running_loop().call_soon(self._settle, turns - 1)
        else:
            self._flush()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        outcomes = {collection: _outcome(collection) for collection in dict.fromkeys(each for each, _ in waiting)}
        for collection, flushed in waiting:
            if flushed.done():
                continue
            if (refusal := outcomes[collection]) is None:
                flushed.set_result(None)
            else:
                flushed.set_exception(refusal)


def _outcome(collection: Collection) -> Refusal | None:
    try:
        collection.flush()
    except Exception as error:  # noqa: BLE001 - the engine raises bare Exception
        return Refusal(500, f"Service internal error: flush failed: {error}")
    return None
