"""The writing end of a run: points, then manifest rows, then problems; the lease is asked before each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from reposync.content.model import Skipped
from reposync.store.manifest import ManifestRow, Manifests
from reposync.store.runs import Run, RunProblem, Runs
from reposync.sync.dense import EmbeddedFile
from reposync.sync.lease import Lease
from reposync.sync.plan import PathSkip, Plan
from reposync.sync.progress import RunProgress, Watch
from reposync.vectors.port import FileWrite, Index, PointWrite, WriteScope

# Rows a transaction and paths a delete request: large enough to be cheap, small enough to answer a cancellation.
PAGE = 1_000

T = TypeVar("T")

LineUrl = Callable[[str, int, int], str | None]
"""(path, first line, last line) -> where a person sees them."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where a run's rows go, and whether it may still write them."""

    run: Run
    lease: Lease
    manifests: Manifests
    runs: Runs


class Writer:
    """Writes what the pipeline brings. Files of one batch share a request and a transaction; within them the order of
    every file is kept: new points in, its other points out, then its row."""

    def __init__(
        self,
        ledger: Ledger,
        index: Index,
        scope: WriteScope,
        *,
        recorded: Mapping[str, ManifestRow],
        orphans_possible: bool,
        line_url: LineUrl,
        progress: RunProgress,
        watch: Watch,
    ) -> None:
        self._ledger = ledger
        self._index = index
        self._scope = scope
        self._recorded = recorded
        self._orphans_possible = orphans_possible
        self._line_url = line_url
        self._progress = progress
        self._watch = watch
        self.processed = 0
        self.deleted = 0
        self.skipped = 0

    async def store(self, batch: Sequence[EmbeddedFile]) -> None:
        """Points, then rows, of files that were read."""
        writes = [write for file in batch if (write := self._file_write(file)).points or write.replaces]
        if writes:
            self._ledger.lease.check()
            await self._index.replace_files(self._scope, writes)
        await self._record([self._row(file) for file in batch])
        await self._report([(file.file.path, file.file.skipped) for file in batch if file.file.skipped])
        self.processed += sum(1 for file in batch if file.dense)
        self._progress.files_done += len(batch)
        self._progress.chunks_done += sum(len(file.dense) for file in batch)
        self._watch(self._progress)

    async def skip(self, skips: Sequence[PathSkip]) -> None:
        """Rows of files that their path keeps out. Their points, if any, went before (`remove`)."""
        for page in _pages(skips):
            await self._record(
                [
                    ManifestRow(
                        path=each.path,
                        blob_sha=each.entry.sha,
                        mode=each.entry.mode,
                        size_bytes=None,
                        chunks=0,
                        skip_reason=each.skipped.reason.value,
                        language=None,
                        epoch=self._scope.epoch,
                    )
                    for each in page
                ]
            )
            await self._report([(each.path, each.skipped) for each in page])

    async def remove(self, plan: Plan) -> None:
        """Points and rows of what is gone."""
        for page in _pages(plan.unindex):
            self._ledger.lease.check()
            await self._index.remove_files(self._scope, page)
            self.deleted += len(page)
        for page in _pages(plan.forget):
            self._ledger.lease.check()
            await self._ledger.manifests.forget(self._ledger.run, self._scope.repository_id, page)

    def _file_write(self, embedded: EmbeddedFile) -> FileWrite:
        file = embedded.file
        before = self._recorded.get(file.path)
        return FileWrite(
            path=file.path,
            language=file.language,
            blob_sha=file.sha,
            points=[
                PointWrite(
                    chunk_index=index,
                    text=chunk.text,
                    start_line=chunk.start_line,
                    end_line=chunk.end_line,
                    content_hash=chunk.content_hash,
                    url=self._line_url(file.path, chunk.start_line, chunk.end_line),
                    dense=dense,
                    sparse=chunk.sparse,
                )
                for index, (chunk, dense) in enumerate(zip(file.chunks, embedded.dense, strict=True))
            ],
            replaces=self._orphans_possible or (before is not None and before.chunks > 0),
        )

    def _row(self, embedded: EmbeddedFile) -> ManifestRow:
        file = embedded.file
        return ManifestRow(
            path=file.path,
            blob_sha=file.sha,
            mode=file.mode,
            size_bytes=file.size_bytes,
            chunks=len(file.chunks),
            skip_reason=file.skipped.reason.value if file.skipped else None,
            language=file.language,
            epoch=self._scope.epoch,
        )

    async def _record(self, rows: Sequence[ManifestRow]) -> None:
        self._ledger.lease.check()
        await self._ledger.manifests.record(self._ledger.run, self._scope.repository_id, rows)

    async def _report(self, skips: Sequence[tuple[str, Skipped | None]]) -> None:
        problems = [RunProblem(path, skipped.reason.value, skipped.detail) for path, skipped in skips if skipped]
        if problems:
            await self._ledger.runs.add_problems(self._ledger.run, problems)
            self.skipped += len(problems)


def _pages(items: Sequence[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while page := list(islice(rest, PAGE)):
        yield page
