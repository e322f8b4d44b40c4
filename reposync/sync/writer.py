"""Writes what a run stores: points, then manifest rows, then problems, each after a check of the lease (of points, the
index does that)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeVar

from reposync.content.model import Skip, Skipped
from reposync.content.secrets import Finding
from reposync.sources.port import path_bytes
from reposync.store.columns import path_key
from reposync.store.manifest import ManifestRow
from reposync.store.run import Run, RunChange, RunProblem
from reposync.store.status import FileChange
from reposync.sync.plan import Plan
from reposync.sync.prepare import PreparedFile
from reposync.sync.progress import RunProgress
from reposync.sync.shown_texts import mask_texts
from reposync.sync.target import SyncParts, TargetTree
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import FileWrite, WriteScope

# Rows of a transaction and paths of a delete request: large enough to be cheap, small enough to cancel promptly.
PAGE = 1_000

T = TypeVar("T")

_NOT_LISTED = "is not in the listing, which cannot be proven to be complete; the index keeps the file"


@dataclass(slots=True)
class Writer:
    """Files of a batch share a request and a transaction. For each file the order is: store the new points, delete its
    other points, record its row.

    A file that could not be read keeps its points. A file that was read and is not indexed any more keeps them until
    `drop_deferred`: by then it is known how many there are, and the brake was checked.
    """

    parts: SyncParts
    run: Run
    index: QdrantIndex
    scope: WriteScope
    target: TargetTree
    recorded: Mapping[str, ManifestRow]
    damaged: Collection[str]
    orphans_possible: bool
    progress: RunProgress
    failed: dict[str, str] = field(default_factory=dict)
    """Path -> blob of files that could not be read or embedded, and of which the index has nothing."""
    deferred: list[PreparedFile] = field(default_factory=list)
    with_secrets: set[str] = field(default_factory=set)
    """Keys of the files in which secrets were found."""
    searched: Mapping[str, ManifestRow] = field(default_factory=dict)
    """The manifest of the version that is searched meanwhile: what changes is a change of that."""
    room: int = 0
    """How many more changed files are listed of the run."""

    async def store(self, batch: Sequence[PreparedFile]) -> None:
        """Store points and rows of files that were read."""
        files: list[PreparedFile] = []
        for file in batch:
            loses_points = file.skipped is not None and not file.is_failed and self.has_points(file.path)
            (self.deferred if loses_points else files).append(file)
        replaced = [self._file_write(file) for file in files if not self._keeps_points(file)]
        await self._replace([write for write in replaced if write.points or write.replaces])
        await self.record(files)
        self.failed |= {file.path: file.sha for file in files if file.is_failed and not self._keeps_points(file)}
        figures = self.progress.figures
        figures.files_processed += sum(1 for file in files if file.chunks)
        kinds = [self._change(file) for file in files]
        figures.files_added += kinds.count(FileChange.ADDED)
        figures.files_changed += kinds.count(FileChange.CHANGED)
        self.progress.advance(len(batch), sum(len(file.chunks) for file in batch))

    async def keep(self, files: Sequence[PreparedFile], rows: Sequence[ManifestRow]) -> None:
        """Store files of another version of the index with their `rows`, instead of what could not be read."""
        await self._replace([self._file_write(file) for file in files])
        await self._record([row._replace(epoch=self.scope.epoch) for row in rows])

    async def drop_deferred(self) -> None:
        """Delete the points of files that were read and are not indexed any more."""
        for page in pages(self.deferred):
            await self.index.remove_files(self.scope, [file.path for file in page])
            await self.record(page)
            await self._list([RunChange(file.path, FileChange.REMOVED) for file in page])
            self.progress.figures.files_deleted += len(page)
        self.deferred = []

    async def record(self, files: Sequence[PreparedFile]) -> None:
        """Write the rows of files, also of those that are skipped because of their path: `delete` has deleted their
        points, if any."""
        for page in pages(files):
            changes = [RunChange(file.path, kind) for file in page if (kind := self._change(file)) is not None]
            await self._record([self.row(file) for file in page], self._listed(changes))
            await self._record_secrets(
                {file.path: (*self._in_path(file.path), *file.secrets) for file in page if not file.is_failed}
            )
            await self._report([(file.path, file.skipped) for file in page])

    async def delete(self, plan: Plan) -> None:
        """Delete the points and rows that the plan names."""
        for page in pages(plan.delete_points):
            await self.index.remove_files(self.scope, page)
            self.progress.figures.files_deleted += len(page)
            shown = [path for path in page if path not in self.target.hidden]
            await self._list([RunChange(path, FileChange.REMOVED) for path in shown])
        for page in pages(plan.delete_rows):
            self.scope.check()
            await self.parts.manifests.forget(self.run, self.scope.version_id, page)
            await self._record_secrets(dict.fromkeys(page, ()))

    async def keep_unlisted(self, paths: Sequence[str]) -> None:
        """Report files that an unproven listing lacks. They stay, although the commit may not have them."""
        for page in pages(paths):
            await self._record([row._replace(wanted_sha="") for path in page if (row := self.recorded.get(path))])
            await self._report([(path, Skipped(Skip.FAILED, _NOT_LISTED)) for path in page])

    def has_points(self, path: str) -> bool:
        """Whether this version had points of the file before this update."""
        before = self.recorded.get(path)
        return before is not None and before.chunks > 0

    def _keeps_points(self, file: PreparedFile) -> bool:
        """A file that failed keeps its points, if they are complete."""
        return file.is_failed and self.has_points(file.path) and file.path not in self.damaged

    def _file_write(self, file: PreparedFile) -> FileWrite:
        path, head = path_bytes(file.path), self.target.head
        return FileWrite(
            path=file.path,
            language=file.language,
            blob_sha=file.sha,
            points=[
                replace(each, url=self.parts.source.url(path, head, each.start_line, each.end_line))
                for each in file.chunks
            ],
            replaces=self.orphans_possible or self.has_points(file.path),
        )

    def row(self, file: PreparedFile) -> ManifestRow:
        reader = self.target.reader(path_bytes(file.path))
        if self._keeps_points(file):
            before = self.recorded[file.path]
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
            epoch=self.scope.epoch,
            reader=None if file.size_bytes is None else reader,
        )

    async def _replace(self, writes: Sequence[FileWrite]) -> None:
        if writes:
            await self.index.replace_files(self.scope, writes)

    async def _record(self, rows: Sequence[ManifestRow], changes: Sequence[RunChange] = ()) -> None:
        self.scope.check()
        await self.parts.manifests.record(self.run, self.scope.version_id, rows, changes)

    def _change(self, file: PreparedFile) -> FileChange | None:
        """None if the file is read again at the same blob, or is not indexed."""
        if not file.chunks:
            return None
        before = self.searched.get(file.path)
        if before is None or not before.chunks:
            return FileChange.ADDED
        return None if before.blob_sha == file.sha else FileChange.CHANGED

    def _listed(self, changes: Sequence[RunChange]) -> Sequence[RunChange]:
        """The first ones, as long as there is room."""
        listed = changes[: self.room]
        self.room -= len(listed)
        return listed

    async def _list(self, changes: Sequence[RunChange]) -> None:
        if listed := self._listed(changes):
            self.scope.check()
            await self.parts.runs.record_changes(self.run, listed)

    async def _record_secrets(self, found: Mapping[str, Sequence[Finding]]) -> None:
        """Record the secrets of these files, by path. Only those that have or had secrets cost a statement."""
        changed = {path: secrets for path, secrets in found.items() if secrets or path_key(path) in self.with_secrets}
        if changed:
            self.scope.check()
            await self.parts.findings.record(self.run, self.scope.commit, changed)
            self.with_secrets |= {path_key(path) for path, secrets in changed.items() if secrets}

    def _in_path(self, path: str) -> Sequence[Finding]:
        return self.target.in_paths.get(path, ())

    async def _report(self, skips: Sequence[tuple[str, Skipped | None]]) -> None:
        problems = [RunProblem(path, skipped.reason.value, skipped.detail) for path, skipped in skips if skipped]
        if problems:
            # Servers quote what they were asked for; the other details are our own words.
            quoting = [number for number, problem in enumerate(problems) if problem.reason == Skip.FAILED]
            details = [problems[number].detail for number in quoting]
            shown = await mask_texts(self.parts.content, details, self.parts.settings.secrets)
            for number, detail in zip(quoting, shown, strict=True):
                problems[number] = replace(problems[number], detail=detail)
            await self.parts.runs.add_problems(self.run, problems)
            self.progress.figures.files_skipped += sum(1 for problem in problems if problem.reason != Skip.FAILED)


def pages(items: Sequence[T], size: int = PAGE) -> Iterator[list[T]]:
    rest = iter(items)
    while page := list(islice(rest, size)):
        yield page
