"""`reposync eval` as a person types it: a real repository, sparse search alone, questions that hit and miss."""

import pytest

from tests.acceptance.conftest import Person
from tests.fixtures.repositories import GitRepository

REGISTRY = """\
embedding: {{provider: none}}
search: {{ranking: plain}}
repositories:
  - {{name: payments, path: '{path}', schedule: yearly}}
"""
FILLING = b"".join(b"padding_%d = %d\n" % (number, number) for number in range(500))
FILES = {
    "billing/sessions.py": b"def remove_expired_sessions(sessions, now):\n    return []\n",
    "billing/invoices.py": FILLING + b"def retry_payment(invoice, attempts=3):\n    return invoice.charge(attempts)\n",
    "README.md": b"# Payments\n\nSessions and invoices.\n",
}
# Found first, first and second; in the file that is found but not in these lines; in no file at all.
QUESTIONS = """\
- {question: remove expired sessions, repository: payments, path: billing/sessions.py}
- {question: retry payment attempts, repository: payments, path: billing/invoices.py, lines: [501, 502]}
- {question: payments sessions, repository: payments, path: billing/sessions.py}
- {question: remove expired sessions, repository: payments, path: billing/sessions.py, lines: [90, 99]}
- {question: where are coupons checked, repository: payments, path: billing/coupons.py}
"""


@pytest.fixture
def synced(person: Person, repository: GitRepository) -> Person:
    repository.commit(FILES)
    person.applies(REGISTRY.format(path=repository.path))
    person.types("sync")
    (person.home / "questions.yaml").write_text(QUESTIONS)
    return person


def test_eval_measures_what_is_live_and_lists_what_it_missed(synced: Person):
    shown = synced.types("eval", "questions.yaml", "--misses").stdout
    figures, _, misses = shown.partition("\n\n")
    assert [line.split() for line in figures.splitlines()] == [
        *(["5", "questions", "live"], ["recall@1", "0.400"], ["recall@5", "0.600"], ["recall@10", "0.600"]),
        *(["MRR@10", "0.500"], ["NDCG@10", "0.526"]),
    ]
    assert misses == (
        "payments sessions\n  payments billing/sessions.py: live rank 2\n"
        "\nremove expired sessions\n  payments billing/sessions.py:90-99: live not in the first 10\n"
        "\nwhere are coupons checked\n  payments billing/coupons.py: live not in the first 10\n"
    )

    document = synced.asks("eval", "questions.yaml")
    assert document["live"].pop("ndcg") == pytest.approx(0.526186)
    assert document["live"] == {"questions": 5, "recall": {"1": 0.4, "5": 0.6, "10": 0.6}, "mrr": 0.5}
    assert [(each["path"], each["lines"], each["ranks"]) for each in document["misses"]] == [
        ("billing/sessions.py", None, {"live": 2}),
        ("billing/sessions.py", [90, 99], {"live": None}),
        ("billing/coupons.py", None, {"live": None}),
    ]

    (synced.home / "questions.yaml").write_text(QUESTIONS + "- {question: a, repository: web, path: b}\n")
    assert "'web'" in synced.types("eval", "questions.yaml", exit_code=3).stderr
