"""What a person sees of a run that is alive."""

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


def test_the_stages_of_a_run_are_timed_each_once_however_many_batches_are_in_it() -> None:
    progress = RunProgress()
    with progress.stage("embedding"), progress.stage("embedding"):
        pass
    progress.enter("listing")
    progress.enter("done")
    progress.enter("done")
    assert all(0 <= seconds < 60 for seconds in progress.as_json()["stage_seconds"].values())
