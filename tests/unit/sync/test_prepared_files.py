"""What the files of a first sync became is kept in a temporary file, if there is room for it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from reposync.sync.prepare import ContentSettings, PreparedFile
from reposync.sync.prepared_files import PreparedFiles

SETTINGS = ContentSettings(7_000, 1_500, 1_000_000)
FILES = [PreparedFile(f"f{number}.py", 0o100644, f"{number:040x}", 100) for number in range(7)]
FILE_IDS = [(file.path, file.sha) for file in FILES]


async def read(prepared: PreparedFiles, wanted: list[tuple[str, str]]) -> list[list[PreparedFile]]:
    return [batch async for batch in prepared.batches(wanted, most_files=2, most_bytes=lambda: 250)]


async def test_files_come_back_as_they_were_and_in_bounded_batches() -> None:
    prepared = PreparedFiles(SETTINGS)
    prepared.add(FILES[:4])
    prepared.add([*FILES[4:], PreparedFile("broken.py", 0o100644, "f" * 40, 1).failed("unreadable")])
    assert prepared.known == set(FILE_IDS)
    batches = await read(prepared, FILE_IDS[1:])
    assert [len(batch) for batch in batches] == [2, 2, 2]
    assert [file for batch in batches for file in batch] == FILES[1:]
    prepared.close()


async def test_without_room_for_them_files_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    prepared = PreparedFiles(SETTINGS)
    prepared.add(FILES)
    assert (prepared.known, await read(prepared, FILE_IDS)) == (set(), [])
    assert "prepared files cannot be kept" in caplog.text
    prepared.close()


def test_nothing_is_added_after_the_end_of_the_run() -> None:
    prepared = PreparedFiles(SETTINGS)
    prepared.close()
    prepared.add(FILES)
    assert prepared.known == set()
