"""Writes what a run stores: points, then manifest rows, then problems, each after a check of the lease."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from reposync.content.model import Skip, Skipped
from reposync.sources.port import path_bytes
from reposync.store.manifest import ManifestRow
from reposync.store.run import RunProblem
from reposync.sync.brake import Losses
from reposync.sync.dense import EmbeddedFile
from reposync.sync.plan import PathSkip, Plan
from reposync.sync.target import RunContext, TargetTree
from reposync.vectors.port import FileWrite, Index, PointWrite, WriteScope

# Rows of a transaction and paths of a delete request: large enough to be cheap, small enough to cancel promptly.
PAGE = 1_000

T = TypeVar("T")

_NOT_LISTED = "is not in the listing, which cannot be proven to be complete; the index keeps the file"


class Writer:
    """Files of a batch share a request and a transaction. For each file the order is: store the new points, delete its
    other points, record its row.

    A file that could not be read keeps its points. A file that was read and is not indexed any more keeps them until
    `drop_deferred`: by then it is known how many there are, and the brake was checked.
    """

    def __init__(
        self,
        context: RunContext,
        index: Index,
        scope: WriteScope,
        target: TargetTree,
        *,
        recorded: Mapping[str, ManifestRow],
        damaged: Collection[str],
        orphans_possible: bool,
    ) -> None:
        self._run = context.run
        self._lease = context.lease
        self._manifests = context.parts.manifests
        self._runs = context.parts.runs
        self._source = context.parts.source
        self._progress = context.progress
        self._index = index
        self._scope = scope
        self._target = target
        self._recorded = recorded
        self._damaged = damaged
        self._orphans_possible = orphans_possible
        self._deferred: list[EmbeddedFile] = []
        self.failed: dict[str, str] = {}
        """Path -> blob of files that could not be read or embedded, and of which the index has nothing."""
        self.processed = 0
        self.deleted = 0
        self.skipped = 0

    async def store(self, batch: Sequence[EmbeddedFile]) -> None:
        """Store points and rows of files that were read."""
        self._deferred += [file for file in batch if self._is_deferred(file)]
        files = [file for file in batch if not self._is_deferred(file)]
        replaced = [self._file_write(file) for file in files if not self._keeps_points(file)]
        await self._replace([write for write in replaced if write.points or write.replaces])
        await self._record([self._row(file) for file in files])
        await self._report([(file.file.path, file.file.skipped) for file in files])
        for file in files:
            if _is_failed(file) and not self._keeps_points(file):
                self.failed[file.file.path] = file.file.sha
        self.processed += sum(1 for file in files if file.dense)
        self._progress.advance(len(batch), sum(len(file.dense) for file in batch))

    async def store_copies(
        self, batch: Sequence[EmbeddedFile], rows: Mapping[str, ManifestRow], *, wanted: Mapping[str, str]
    ) -> None:
        """Store files of another version of the index with their `rows` there. `wanted`: `ManifestRow.wanted_sha` of
        those that are not what this version should have."""
        await self._replace([self._file_write(file) for file in batch])
        copies = [
            rows[each.file.path]._replace(
                epoch=self._scope.epoch, wanted_sha=wanted.get(each.file.path), chunks=len(each.dense)
            )
            for each in batch
        ]
        await self._record(copies)
        self.processed += len(batch) - len(wanted)
        self._progress.advance(len(batch), sum(len(file.dense) for file in batch))

    def lost(self, before: int) -> Losses:
        """The deferred files, as losses of `before` files with points."""
        losses = Losses(before)
        for each in self._deferred:
            if each.file.skipped:
                losses.add(each.file.skipped.reason.value, each.file.path, each.file.skipped.detail)
        return losses

    async def drop_deferred(self) -> None:
        """Delete the points of files that were read and are not indexed any more."""
        for page in pages(self._deferred):
            self._lease.check()
            await self._index.remove_files(self._scope, [each.file.path for each in page])
            await self._record([self._row(each) for each in page])
            await self._report([(each.file.path, each.file.skipped) for each in page])
        self._deferred = []

    async def skip(self, skips: Sequence[PathSkip]) -> None:
        """Record files that are skipped because of their path. `delete` has deleted their points, if any."""
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

    async def delete(self, plan: Plan) -> None:
        """Delete the points and rows that the plan names."""
        for page in pages(plan.delete_points):
            self._lease.check()
            await self._index.remove_files(self._scope, page)
            self.deleted += len(page)
        for page in pages(plan.delete_rows):
            self._lease.check()
            await self._manifests.forget(self._run, self._scope.repository_id, page)

    async def keep_unlisted(self, paths: Sequence[str]) -> None:
        """Report files that an unproven listing lacks. They stay, although the commit may not have them."""
        for page in pages(paths):
            await self._record([row._replace(wanted_sha="") for path in page if (row := self._recorded.get(path))])
            await self._report([(path, Skipped(Skip.FAILED, _NOT_LISTED)) for path in page])

    def _has_points(self, path: str) -> bool:
        before = self._recorded.get(path)
        return before is not None and before.chunks > 0

    def _keeps_points(self, file: EmbeddedFile) -> bool:
        """A file that failed keeps its points, if they are complete."""
        path = file.file.path
        return _is_failed(file) and self._has_points(path) and path not in self._damaged

    def _is_deferred(self, file: EmbeddedFile) -> bool:
        return file.file.skipped is not None and not _is_failed(file) and self._has_points(file.file.path)

    def _file_write(self, embedded: EmbeddedFile) -> FileWrite:
        file = embedded.file
        path = path_bytes(file.path)
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
                    url=self._source.url(path, self._target.head, chunk.start_line, chunk.end_line),
                    dense=dense,
                    sparse=chunk.sparse,
                )
                for index, (chunk, dense) in enumerate(zip(file.chunks, embedded.dense, strict=True))
            ],
            replaces=self._orphans_possible or self._has_points(file.path),
        )

    def _row(self, embedded: EmbeddedFile) -> ManifestRow:
        file = embedded.file
        reader = self._target.reader(path_bytes(file.path))
        if self._keeps_points(embedded):
            before = self._recorded[file.path]
            # The same blob, which must now become something else than when it could be read.
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

    async def _replace(self, writes: Sequence[FileWrite]) -> None:
        if writes:
            self._lease.check()
            await self._index.replace_files(self._scope, writes)

    async def _record(self, rows: Sequence[ManifestRow]) -> None:
        self._lease.check()
        await self._manifests.record(self._run, self._scope.repository_id, rows)

    async def _report(self, skips: Sequence[tuple[str, Skipped | None]]) -> None:
        problems = [RunProblem(path, skipped.reason.value, skipped.detail) for path, skipped in skips if skipped]
        if problems:
            await self._runs.add_problems(self._run, problems)
            self.skipped += sum(1 for problem in problems if problem.reason != Skip.FAILED)


def _is_failed(file: EmbeddedFile) -> bool:
    return file.file.skipped is not None and file.file.skipped.reason is Skip.FAILED


def pages(items: Sequence[T], size: int = PAGE) -> Iterator[list[T]]:
    rest = iter(items)
    while page := list(islice(rest, size)):
        yield page
