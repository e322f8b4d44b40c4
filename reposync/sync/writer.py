"""The writing end of a run: points, then manifest rows, then problems; the lease is asked before each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from reposync.content.model import Skip, Skipped
from reposync.sources.paths import path_bytes
from reposync.store.manifest import ManifestRow, Manifests
from reposync.store.runs import Run, RunProblem, Runs
from reposync.sync.brake import Losses
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
Reader = Callable[[bytes], str]
"""Path -> what decides, beside its content, what becomes of the file (`Target.reader`)."""

_NOT_LISTED = "is not in the listing, which cannot be proven to be complete; what the index has of it stays"


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where a run's rows go, and whether it may still write them."""

    run: Run
    lease: Lease
    manifests: Manifests
    runs: Runs


class Writer:
    """Writes what the pipeline brings. Files of one batch share a request and a transaction; within them the order of
    every file is kept: new points in, its other points out, then its row.

    A file that could not be read keeps its points. One that was read and is not to be indexed any more keeps them until
    `drop_deferred`: by then it is known how many there are.
    """

    def __init__(
        self,
        ledger: Ledger,
        index: Index,
        scope: WriteScope,
        *,
        recorded: Mapping[str, ManifestRow],
        damaged: Collection[str],
        orphans_possible: bool,
        line_url: LineUrl,
        reader: Reader,
        progress: RunProgress,
        watch: Watch,
    ) -> None:
        self._ledger = ledger
        self._index = index
        self._scope = scope
        self._recorded = recorded
        self._damaged = damaged
        self._orphans_possible = orphans_possible
        self._line_url = line_url
        self._reader = reader
        self._progress = progress
        self._watch = watch
        self._deferred: list[EmbeddedFile] = []
        self.failed: dict[str, str] = {}
        """Path -> blob of files that could not be read or embedded, and of which the index has nothing."""
        self.processed = 0
        self.deleted = 0
        self.skipped = 0

    async def store(self, batch: Sequence[EmbeddedFile]) -> None:
        """Points, then rows, of files that were read."""
        now = [file for file in batch if not self._is_deferred(file)]
        self._deferred += [file for file in batch if self._is_deferred(file)]
        writes = [write for file in now if not self._keeps_points(file) and _writes(write := self._file_write(file))]
        if writes:
            self._ledger.lease.check()
            await self._index.replace_files(self._scope, writes)
        await self._record([self._row(file) for file in now])
        await self._report([(file.file.path, file.file.skipped) for file in now if file.file.skipped])
        self.failed |= {
            file.file.path: file.file.sha for file in now if _is_failed(file) and not self._keeps_points(file)
        }
        self.processed += sum(1 for file in now if file.dense)
        self._progress.files_done += len(batch)
        self._progress.chunks_done += sum(len(file.dense) for file in batch)
        self._watch(self._progress)

    async def store_as_recorded(
        self, batch: Sequence[EmbeddedFile], rows: Mapping[str, ManifestRow], *, wanted: Mapping[str, str]
    ) -> None:
        """Files of another version of the index, as their `rows` there say. `wanted`: see `ManifestRow.wanted_sha`, of
        those that are not what this version is to have."""
        self._ledger.lease.check()
        await self._index.replace_files(self._scope, [self._file_write(file) for file in batch])
        taken = [
            rows[each.file.path]._replace(
                epoch=self._scope.epoch, wanted_sha=wanted.get(each.file.path), chunks=len(each.dense)
            )
            for each in batch
        ]
        await self._record(taken)
        self.processed += len(batch) - len(wanted)
        self._progress.files_done += len(batch)
        self._progress.chunks_done += sum(len(file.dense) for file in batch)
        self._watch(self._progress)

    def lost(self, before: int) -> Losses:
        """What is deferred, of `before` files with points."""
        losses = Losses(before)
        for each in self._deferred:
            if each.file.skipped:
                losses.add(each.file.skipped.reason.value, each.file.path, each.file.skipped.detail)
        return losses

    async def drop_deferred(self) -> None:
        """Take out what was read and is not to be indexed any more."""
        for page in pages(self._deferred):
            self._ledger.lease.check()
            await self._index.remove_files(self._scope, [each.file.path for each in page])
            await self._record([self._row(each) for each in page])
            await self._report([(each.file.path, each.file.skipped) for each in page])
        self._deferred = []

    async def skip(self, skips: Sequence[PathSkip]) -> None:
        """Rows of files that their path keeps out. Their points, if any, went before (`remove`)."""
        for page in pages(skips):
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
        for page in pages(plan.unindex):
            self._ledger.lease.check()
            await self._index.remove_files(self._scope, page)
            self.deleted += len(page)
        for page in pages(plan.forget):
            self._ledger.lease.check()
            await self._ledger.manifests.forget(self._ledger.run, self._scope.repository_id, page)

    async def doubt(self, paths: Sequence[str]) -> None:
        """Files that an unproven listing lacks: they stay, and nobody knows whether the commit has them."""
        for page in pages(paths):
            await self._record([row._replace(wanted_sha="") for path in page if (row := self._recorded.get(path))])
            await self._report([(path, Skipped(Skip.FAILED, _NOT_LISTED)) for path in page])

    def _has_points(self, path: str) -> bool:
        before = self._recorded.get(path)
        return before is not None and before.chunks > 0

    def _keeps_points(self, file: EmbeddedFile) -> bool:
        """Unless some of them are gone: half a file is none."""
        path = file.file.path
        return _is_failed(file) and self._has_points(path) and path not in self._damaged

    def _is_deferred(self, file: EmbeddedFile) -> bool:
        return file.file.skipped is not None and not _is_failed(file) and self._has_points(file.file.path)

    def _file_write(self, embedded: EmbeddedFile) -> FileWrite:
        file = embedded.file
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
            replaces=self._orphans_possible or self._has_points(file.path),
        )

    def _row(self, embedded: EmbeddedFile) -> ManifestRow:
        file = embedded.file
        reader = self._reader(path_bytes(file.path))
        if self._keeps_points(embedded):
            before = self._recorded[file.path]
            # The same blob, which is to become something else now than it was when it could be read.
            doubted = before.blob_sha == file.sha and (before.reader != reader or before.wanted_sha == "")
            return before._replace(wanted_sha="" if doubted else file.sha)
        return ManifestRow(
            path=file.path,
            blob_sha=file.sha,
            mode=file.mode,
            size_bytes=file.size_bytes,
            chunks=len(file.chunks),
            skip_reason=file.skipped.reason.value if file.skipped else None,
            language=file.language,
            epoch=self._scope.epoch,
            reader=reader,
        )

    async def _record(self, rows: Sequence[ManifestRow]) -> None:
        self._ledger.lease.check()
        await self._ledger.manifests.record(self._ledger.run, self._scope.repository_id, rows)

    async def _report(self, skips: Sequence[tuple[str, Skipped | None]]) -> None:
        problems = [RunProblem(path, skipped.reason.value, skipped.detail) for path, skipped in skips if skipped]
        if problems:
            await self._ledger.runs.add_problems(self._ledger.run, problems)
            self.skipped += sum(1 for problem in problems if problem.reason != Skip.FAILED)


def _is_failed(file: EmbeddedFile) -> bool:
    return file.file.skipped is not None and file.file.skipped.reason is Skip.FAILED


def _writes(write: FileWrite) -> bool:
    return bool(write.points) or write.replaces


def pages(items: Sequence[T], size: int = PAGE) -> Iterator[list[T]]:
    rest = iter(items)
    while page := list(islice(rest, size)):
        yield page
