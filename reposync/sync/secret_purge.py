"""Applies a changed set of rules for secrets to what the index holds: no source is asked.

A file that needs its source is not purged: one that is masked already may show more, or something else, under the new
rules (`TargetTree.reads_otherwise`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reposync.content.model import Skip, content_hash
from reposync.content.secret_policy import SecretPolicy
from reposync.embedding.sparse import document_vector
from reposync.finding import Finding
from reposync.ordering import in_order
from reposync.sources.port import path_bytes
from reposync.store.columns import path_key
from reposync.store.manifest import ManifestRow
from reposync.store.run import Run, RunProblem
from reposync.store.tables import IndexVersion
from reposync.symbol import Symbol, read_names, read_symbols
from reposync.sync.brake import Brake, Losses
from reposync.sync.content_pool import WorkerDied
from reposync.sync.lease import Lease
from reposync.sync.pipeline import DenseVectors, Vectors
from reposync.sync.prepare import Rescanned, ScanJob, StoredText
from reposync.sync.progress import RunProgress
from reposync.sync.shown_texts import scan_paths
from reposync.sync.stored_points import own_text, stored_chunk
from reposync.sync.target import SyncParts, reader_of, rules_in
from reposync.sync.writer import pages
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import FileWrite, PointWrite, StoredPoint, WriteScope

# Files whose texts are in memory at once: 1 MB for ordinary code.
_FILES_AT_ONCE = 200
_UNSCANNED = "ended the worker that looked for secrets in it; the next run tries again"


class _Changed(NamedTuple):
    """A chunk, and what it becomes."""

    point: StoredPoint
    text: str
    symbols: Sequence[Symbol]
    calls: Sequence[str]


@dataclass(slots=True)
class SecretPurge:
    """Safe to repeat and to abandon at any await: a file that is done has its row. `vectors`: None if the version is
    found by words alone at present; what lacks a dense vector gets it later."""

    parts: SyncParts
    run: Run
    lease: Lease
    progress: RunProgress
    index: QdrantIndex
    version: IndexVersion
    vectors: DenseVectors | None
    scanned: int = 0
    masked: int = 0
    failed: list[str] = field(default_factory=list)
    _in_paths: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)

    @property
    def policy(self) -> SecretPolicy:
        return self.parts.settings.secrets

    @property
    def notice(self) -> str | None:
        """For the history, if anything changed."""
        if not self.masked and not self.failed:
            return None
        before = (self.version.secret_rules or "none").split()[0]
        after = self.policy.fingerprint.split()[0]
        left = f", {len(self.failed):,} could not be scanned" if self.failed else ""
        files = "1 file" if self.masked == 1 else f"{self.masked:,} files"
        return f"Secrets: rules {before} -> {after}: {files} of {self.scanned:,} masked{left}."

    async def apply(self) -> None:
        """Raises DeletionBlocked, LeaseLost, SecretRulesUnavailable, and what embedder, index and store raise."""
        if self.version.secret_rules == self.policy.fingerprint:
            return
        recorded = await self.parts.manifests.load(self.version.id)
        # Files that were left out by their path alone were not read, with any rules.
        read = [row for row in recorded.values() if row.reader is not None]
        rows = [row for row in read if rules_in(row.reader) != self._rules_of(row)]
        if rows:
            self.progress.enter("purging secrets")
        with_secrets = set(await self.parts.findings.first_lines(self.parts.repository.id)) if rows else set()
        # What the update of this run wrote passed the present rules.
        unread = [row for row in recorded.values() if row.reader is None and row.epoch <= self.version.epoch]
        indexed = sum(1 for row in recorded.values() if row.chunks)
        hidden = await self._hide_paths([*rows, *unread], Losses(indexed))
        rows = [row for row in rows if row.path not in hidden]
        for page in pages(in_order(rows, lambda row: row.path), _FILES_AT_ONCE):
            await self._purge(page, with_secrets)
        if not self.failed:
            await self.parts.versions.record_secret_rules(self.run, self.version.id, self.policy.fingerprint)

    def _rules_of(self, row: ManifestRow) -> str:
        return self.policy.rules_of(path_bytes(row.path))

    async def _hide_paths(self, rows: Sequence[ManifestRow], losses: Losses) -> Mapping[str, str]:
        """Files whose paths hold a secret lose their points, and are recorded under what is shown; by their paths."""
        hidden, self._in_paths = await scan_paths(self.parts.content, [row.path for row in rows], self.policy)
        for row in rows:
            if row.chunks and row.path in hidden:
                losses.add(Skip.SECRET, hidden[row.path])
        commit = self.version.commit_sha or ""
        Brake(self.parts.repository.name, commit, len(rows), self.run.approval).check(losses)
        self.masked += len(hidden)
        for row in rows:
            if (shown := hidden.get(row.path)) is None:
                continue
            if row.chunks:
                await self.index.remove_files(self._scope(commit, row.epoch), [row.path])
            skipped = ManifestRow(shown, row.blob_sha, row.mode, None, 0, Skip.SECRET.value, None, row.epoch)
            self.lease.check()
            await self.parts.findings.record(self.run, commit, {row.path: (), shown: self._in_paths[shown]})
            await self.parts.manifests.record(self.run, self.version.id, [skipped])
            await self.parts.manifests.forget(self.run, self.version.id, [row.path])
        await self.parts.runs.hide_problems(self.run, hidden)
        return hidden

    async def _purge(self, rows: Sequence[ManifestRow], with_secrets: set[str]) -> None:
        """These files: their points, then what was found, then their rows."""
        stored = await self._stored([row for row in rows if row.chunks and self._rules_of(row)])
        texts = [
            StoredText(path_bytes(path), tuple(stored_chunk(point) for point in points))
            for path, points in stored.items()
        ]
        results = await self._scan(texts)
        self.scanned += len(results)
        by_path = {row.path: row for row in rows}
        writes: list[tuple[ManifestRow, list[_Changed]]] = []
        for (path, points), result in zip(stored.items(), results, strict=True):
            if result is None:
                self.failed.append(path)
            elif changed := _changes(points, result.texts):
                writes.append((by_path[path], changed))
        refused = await self._write(writes)
        self.masked += len(writes)
        found = {
            path: (*self._in_paths.get(path, ()), *result.findings)
            for path, result in zip(stored, results, strict=True)
            if result is not None and (result.findings or path in self._in_paths or path_key(path) in with_secrets)
        } | {row.path: () for row in rows if not self._rules_of(row) and path_key(row.path) in with_secrets}
        self.lease.check()
        await self.parts.findings.record(self.run, self.version.commit_sha or "", found)
        done = [
            row._replace(reader=reader_of(row.reader or "", self._rules_of(row)))
            for row in rows
            if row.path not in self.failed
        ]
        done = [
            row._replace(chunks=0, skip_reason=Skip.FAILED.value, language=None) if row.path in refused else row
            for row in done
        ]
        self.lease.check()
        await self.parts.manifests.record(self.run, self.version.id, done)
        unscanned = {path: _UNSCANNED for path in stored if path in self.failed}
        problems = [RunProblem(path, Skip.FAILED, why) for path, why in {**refused, **unscanned}.items()]
        await self.parts.runs.add_problems(self.run, problems)

    async def _scan(self, texts: Sequence[StoredText]) -> list[Rescanned | None]:
        """A text that ends its worker, also when it is scanned alone, has no result; the next run tries it again."""
        results: list[Rescanned | None] = []
        while rest := texts[len(results) :]:
            try:
                results += await self.parts.content.scan(ScanJob(rest, self.policy))
            except WorkerDied as death:
                results += death.results
                if len(results) < len(texts):
                    with contextlib.suppress(WorkerDied):
                        results += await self.parts.content.scan(ScanJob(rest[len(death.results) :][:1], self.policy))
                        continue
                    results.append(None)
        return results

    async def _stored(self, rows: Sequence[ManifestRow]) -> dict[str, list[StoredPoint]]:
        """The points of these files that this program wrote, by path and in their order."""
        wanted = {row.path: row.blob_sha for row in rows}
        found: defaultdict[str, list[StoredPoint]] = defaultdict(list)
        if not wanted:
            return {}
        async for points in self.index.chunks(self.version.id, list(wanted)):
            for point in points:
                if own_text(point, self.version.id) is not None:
                    metadata = point.payload["metadata"]
                    if wanted.get(metadata["path"]) == metadata["blob_sha"]:
                        found[metadata["path"]].append(point)
        return {path: in_order(points, _number) for path, points in found.items()}

    async def _write(self, writes: Sequence[tuple[ManifestRow, list[_Changed]]]) -> dict[str, str]:
        """The changed chunks, in place of those with the same ids. They keep commit and epoch: by these an audit knows
        which run read the file. A file with a text that the model refuses fails, as in each sync, but does not keep its
        old points, which have the secret; returns the reasons by path."""
        texts = [(content_hash(each.text), each.text) for _, changed in writes for each in changed]
        vectors: Mapping[str, Vectors] = {}
        if self.vectors is not None and texts:
            vectors = await self.vectors.of_texts(texts)
        refused: dict[str, str] = {}
        for row, changed in writes:
            found = [vectors.get(content_hash(each.text)) for each in changed]
            if reasons := [each for each in found if isinstance(each, str)]:
                refused[row.path] = reasons[0]
                await self.index.remove_files(self._scope(self.version.commit_sha or "", row.epoch), [row.path])
                continue
            by_scope: defaultdict[tuple[str, int], list[PointWrite]] = defaultdict(list)
            for each, dense in zip(changed, found, strict=True):
                write = await asyncio.to_thread(_point, each, dense)
                metadata = each.point.payload["metadata"]
                by_scope[str(metadata["commit"]), int(metadata["epoch"])].append(write)
            for (commit, epoch), points in by_scope.items():
                file = FileWrite(row.path, row.language, row.blob_sha, points, replaces=False)
                await self.index.replace_files(self._scope(commit, epoch), [file])
        if self.vectors is not None:
            self.vectors.stored(hashed for hashed, _ in texts)
        return refused

    def _scope(self, commit: str, epoch: int) -> WriteScope:
        return WriteScope(self.version.id, self.parts.repository.name, commit, epoch, self.lease.check)


def _number(point: StoredPoint) -> int:
    number: int = point.payload["metadata"]["chunk_index"]
    return number


def _changes(points: Sequence[StoredPoint], texts: Sequence[str]) -> list[_Changed]:
    """The chunks of a file with other texts, and those of which a definition's name is masked, wherever that is."""
    before = [point.payload["page_content"] for point in points]
    if list(texts) == before:
        return []
    changed = []
    for point, text, old in zip(points, texts, before, strict=True):
        named = read_symbols(point.payload["metadata"].get("symbols"))
        symbols = [symbol for symbol in named if any(symbol.name in each for each in texts)]
        called = read_names(point.payload["metadata"].get("calls"))
        calls = [name for name in called if name in text]
        if text != old or len(symbols) < len(named) or len(calls) < len(called):
            changed.append(_Changed(point, text, symbols, calls))
    return changed


def _point(changed: _Changed, dense: Any) -> PointWrite:
    point, text, symbols, calls = changed
    metadata, chunk = point.payload["metadata"], stored_chunk(point)
    return PointWrite(
        metadata["chunk_index"],
        text,
        chunk.start_line,
        chunk.end_line,
        content_hash(text),
        url=metadata.get("url"),
        dense=dense,
        sparse=document_vector(text, path=metadata["path"], names=[symbol.name for symbol in symbols]),
        symbols=tuple(symbols),
        start_index=chunk.start_index,
        calls=calls,
    )
