"""What the files of a first sync became for its words, kept for its meaning: each is fetched and prepared once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from typing import IO

from reposync.sync.prepare import ContentSettings, PreparedFile

log = logging.getLogger(__name__)

# Of the temporary file, which may be in memory (tmpfs). What does not fit is read and prepared again.
MOST_BYTES = 1_000_000_000

FileId = tuple[str, str]
"""Path and blob."""


class PreparedFiles:
    """Of one way to prepare them, `settings`. In a temporary file without a name, so that memory does not grow with the
    repository. It is lost with the process, or if the disk is full: whoever needs a file that is not in `known` reads
    it from the source. To be closed."""

    def __init__(self, settings: ContentSettings) -> None:
        self.settings = settings
        self.known: set[FileId] = set()
        self._file: IO[bytes] | None = None
        self._takes_more = True
        self._files = 0
        # A cancelled run closes it while a thread still adds.
        self._lock = threading.Lock()

    def add(self, files: Sequence[PreparedFile]) -> None:
        """Blocks. Not of files that could not be read or processed."""
        kept, added = [file for file in files if not file.is_failed], list[FileId]()
        with self._lock:
            if not self._takes_more:
                return
            try:
                if self._file is None:
                    self._file = tempfile.TemporaryFile(prefix="reposync-prepared-")  # noqa: SIM115 - see `close`
                for file in kept:
                    if self._file.tell() > MOST_BYTES:
                        self._takes_more = False
                        break
                    pickle.dump(file, self._file, pickle.HIGHEST_PROTOCOL)
                    added.append((file.path, file.sha))
                self._file.flush()
            except OSError as error:
                log.warning("prepared files cannot be kept in %s: %s", tempfile.gettempdir(), error)
                self.known.clear()
                self._end()
                return
            self.known.update(added)
            self._files += len(added)

    async def batches(
        self, wanted: Collection[FileId], most_files: int, most_bytes: Callable[[], int]
    ) -> AsyncGenerator[list[PreparedFile], None]:
        """Those that are `wanted`, in the order in which they were added. `most_bytes` is called for each batch."""
        if self._file is None:
            return
        self._file.seek(0)
        left = self._files

        def read(file: IO[bytes], bound: int) -> tuple[list[PreparedFile], int]:
            batch, count, size_bytes = list[PreparedFile](), 0, 0
            while count < left and len(batch) < most_files and size_bytes < bound:
                prepared: PreparedFile = pickle.load(file)  # noqa: S301 - of this process
                count += 1
                if (prepared.path, prepared.sha) in wanted:
                    batch.append(prepared)
                    size_bytes += prepared.size_bytes or 0
            return batch, count

        while left:
            batch, count = await asyncio.to_thread(read, self._file, most_bytes())
            left -= count
            if batch:
                yield batch

    def close(self) -> None:
        with self._lock:
            self._end()

    def _end(self) -> None:
        self._takes_more = False
        if self._file is not None:
            with contextlib.suppress(OSError):  # what a full disk did not take
                self._file.close()
            self._file = None
