"""Files that cannot be read, as a person meets them on the command line."""

from tests.acceptance.conftest import Person
from tests.fixtures.missing_blobs import unreadable
from tests.fixtures.repositories import Content, GitRepository

REGISTRY = """\
embedding: {{provider: none}}
repositories:
  - {{name: payments, path: '{path}', schedule: yearly{more}}}
"""


def configures(person: Person, repository: GitRepository, more: str = "") -> None:
    person.environment["REPOSYNC_STATE_DIR"] = str(person.home / "state")
    person.applies(REGISTRY.format(path=repository.path, more=more))


def test_a_file_that_cannot_be_read_fails_the_command_until_it_was_read(person: Person, repository: GitRepository):
    first = repository.commit({"a.py": b"alpha = 1\n", "b.py": b"beta = 1\n"})
    configures(person, repository)
    person.types("sync")
    second = str(repository.commit({"a.py": b"alpha = 2\n", "b.py": b"beta = 2\n"}))
    with unreadable(repository, "a.py"):
        done = person.types("sync", exit_code=1)
        assert f"payments: completed with 1 file failed at {second[:10]}: 1 file stored" in done.stdout
        assert f"1 file of commit {second[:10]} could not be read" in done.stdout
        [run] = person.lists("sync", exit_code=1)
        assert (run["status"], run["error_code"], run["files_failed"]) == ("completed", "FILES_FAILED", 1)
        assert person.asks("repos", "show", "payments")["last_commit"] == first
        assert "alpha = 1" in person.types("search", "alpha").stdout, "what the index had stays"
        done = person.types("verify", "--source", exit_code=1)
        assert "payments: NOT exact" in done.stdout and "1 missing" in done.stdout and "a.py" in done.stdout
    done = person.types("verify", "--repair", "--source")
    assert f"payments: exact at {second[:10]}: 2 files, 2 points" in done.stdout
    assert person.asks("repos", "show", "payments")["last_commit"] == second


def test_a_mistyped_pattern_stops_until_a_person_approves_just_that(person: Person, repository: GitRepository):
    files: dict[str, Content] = {f"src/m{number}.py": b"value = %d\n" % number for number in range(30)}
    repository.commit(files)
    configures(person, repository)
    person.types("sync")
    configures(person, repository, ", include: ['scr/**']")
    [blocked] = person.lists("sync", exit_code=1)
    assert blocked["status"] == "blocked"
    assert "30 of the 30 indexed files of payments would be lost" in blocked["error_message"]
    assert "30 match no include pattern now (src/m" in blocked["error_message"]
    person.types("runs", "approve", blocked["id"])
    repository.commit({"src/more.py": b"more = 1\n"})
    assert "What was approved is not what would be lost now" in person.types("sync", exit_code=1).stdout
    assert "30 deleted" in person.types("sync", "--allow-mass-delete").stdout
