"""What a person sees of a run that is alive."""

import pytest

from reposync.sync.progress import RunProgress


def test_chunks_are_estimated_from_the_files_that_were_read() -> None:
    progress = RunProgress(files_total=100)
    assert progress.chunks_total == 0
    progress.read(10, 25)
    assert (progress.chunks_total, progress.chunks_words()) == (250, "0 of about 250 chunks embedded")
    progress.read(90, 60)
    assert (progress.chunks_total, progress.chunks_words()) == (85, "0 of 85 chunks embedded")


def test_a_model_that_works_on_its_first_batch_moves_the_figures() -> None:
    progress = RunProgress(phase="indexing", files_total=4)
    progress.read(4, 8)
    progress.embedded(0.5)
    progress.embedded(0.75)
    said = progress.as_json()
    assert (said["files_done"], said["chunks_embedded"], said["chunks_total"]) == (0, 1, 8)
    assert said["eta_seconds"] is not None
    assert progress.words() == "indexing 0 of 4 files, 1 of 8 chunks embedded"


def test_the_meaning_after_the_words_counts_from_nothing() -> None:
    progress = RunProgress(files_total=4)
    progress.read(4, 8)
    progress.embedded(8)
    progress.advance(4, 8)
    progress.restart()
    said = progress.as_json()
    assert (said["files_done"], said["chunks_done"], said["chunks_total"], said["eta_seconds"]) == (0, 0, 0, None)


def test_the_stages_of_a_run_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("reposync.sync.progress.time.monotonic", lambda: now)
    progress = RunProgress()
    progress.enter("listing")
    now = 2.0
    progress.enter("indexing")
    for _ in range(2):
        with progress.stage("embedding"):
            now += 3.0
    progress.enter("done")
    assert progress.as_json()["stage_seconds"] == {"listing": 2.0, "embedding": 6.0}
