"""Search in words on a real project, with nothing configured: the model inside the package, the embedded engine."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.acceptance.conftest import Person
from tests.fixtures.repositories import GitRepository

pytestmark = pytest.mark.full

QUESTIONS = {
    "decompress the body of a response that was sent with gzip or brotli": "httpx/_decoders.py",
    "answer a digest authentication challenge": "httpx/_auth.py",
    "which proxy do the environment variables ask for": "httpx/_utils.py",
    "strip credentials when a redirect leads to another host": "httpx/_client.py",
    "write a file upload as a multipart form": "httpx/_multipart.py",
    "names of the numeric status codes": "httpx/_status_codes.py",
}


def test_a_phrase_in_words_of_what_a_function_does_finds_its_file_among_the_first_five(
    person: Person, repository: GitRepository
):
    spec = find_spec("httpx")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    files = {f"httpx/{path.name}": path.read_bytes() for path in sorted(package.glob("*.py"))}
    repository.commit(files)
    (run,) = person.lists("sync", str(repository.path))
    assert run["status"] == "completed"
    assert run["files_processed"] == len(files)
    for question, path in QUESTIONS.items():
        found = [hit["path"] for hit in person.lists("search", question, "--limit", "5")]
        assert path in found, f"{question}: {found}"
