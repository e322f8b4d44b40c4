"""`reposync eval` as a person types it: a real repository, sparse search alone, questions that hit and miss."""

import json

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


# From the history ----------------------------------------------------------------------------------------------------


@pytest.fixture
def developed(person: Person, repository: GitRepository) -> Person:
    repository.commit(FILES, message="Start the whole project")
    for name, subject in [
        ("billing/coupons.py", "Count how often a coupon was used"),
        ("billing/rates.py", "Convert amounts between currencies"),
        ("billing/taxes.py", "Apply the right percentage for a country"),
    ]:
        code = f"def {subject.replace(' ', '_').lower()}(amount):\n    return amount\n"
        repository.commit({name: code.encode()}, message=f"{subject} (#12)")
    repository.commit(
        {"billing/taxes.py": b"\n\ndef nothing_of_it():\n    pass\n"}, message="Simplify what nobody sees"
    )
    repository.commit({"CHANGELOG.md": b"- Coupons are counted\n"}, message="Tell what is new in this one")
    repository.commit({"README.md": b"# Payments\n"}, message="fmt")
    person.applies(REGISTRY.format(path=repository.path))
    person.types("sync")
    return person


def test_eval_asks_what_the_history_says(developed: Person):
    shown = developed.types("eval", "--from-history", "payments")

    assert "flatter" in shown.stderr
    lines = [line.rstrip() for line in shown.stdout.splitlines()]
    assert lines[0].startswith("4 questions of payments, searched in ") and lines[0].endswith("which has the changes")
    assert next(line for line in lines if line.startswith("recall@10")).split()[1] == "0.500"
    assert "Left out: 3 commits" in lines
    assert [line.split(maxsplit=1)[1] for line in lines if line.split(maxsplit=1)[:1] == ["1"]] == [
        "no parent to compare with",
        "format, versions or names only",
        "changed a changelog only",
    ]
    assert "  billing/taxes.py: not in the first 10; nothing was found" in lines

    document = developed.asks("eval", "--from-history", "payments", "--last", "2")
    assert (document["questions"], document["states"], document["model"]) == (2, 0, None)
    assert document["left_out"] == {"format": 1, "changelog": 1}
    assert set(document["by"]) == {"words"} and set(document["by"]["words"]["mrr"]) == {"mean", "low", "high"}
    assert [(each["question"], each["paths"]) for each in document["answers"]] == [
        ("Simplify what nobody sees", ["billing/taxes.py"]),
        ("Apply the right percentage for a country", ["billing/taxes.py"]),
    ]


def test_questions_of_the_history_can_be_asked_again(developed: Person):
    found = developed.asks("eval", "--from-history", "payments", "--save", "kept.yaml")

    again = developed.asks("eval", "kept.yaml")

    assert again["questions"] == found["questions"] == 4
    assert again["live"]["ndcg"] == pytest.approx(found["by"]["words"]["ndcg"]["mean"])
    assert [each["paths"] for each in again["misses"]] == [
        each["paths"] for each in found["answers"] if each["ranks"]["words"][:1] != [1]
    ]


def test_results_that_are_saved_are_compared(developed: Person):
    shown = developed.types("eval", "--from-history", "payments", "--save", "words.json").stdout
    assert shown.startswith("4 questions of payments")
    printed = developed.asks("eval", "--from-history", "payments")
    saved = json.loads((developed.home / "words.json").read_text())
    assert {**saved, "at": None} == {**printed, "at": None}

    compared = developed.asks("eval", "--compare", "words.json", "words.json")

    assert (compared["questions"], compared["unpaired"]) == (4, 0)
    refused = developed.types("eval", "--from-history", "payments", "--save", "words.txt", exit_code=2)
    assert refused.stdout == "" and ".json" in refused.stderr and not (developed.home / "words.txt").exists()


def test_eval_replays_the_state_before_the_changes(developed: Person):
    shown = developed.types("eval", "--from-history", "payments", "--replay")

    assert "flatter" not in shown.stderr
    assert shown.stdout.startswith("1 question of payments, searched in 1 past state, none of which has the changes\n")
    assert any(line.split() == ["3", "files", "are", "not", "there"] for line in shown.stdout.splitlines())
    assert list((developed.home / "state").glob("replays/*")) == []

    (kept,) = developed.lists("eval", "--from-history", "payments", "--past")
    assert (kept["states"], kept["questions"]) == (1, 1)
    assert developed.types("eval", "--from-history", "payments", "--past").stdout.split()[:2] == ["at", "commit"]


def test_what_cannot_be_asked_of_a_history_is_said(person: Person, repository: GitRepository):
    repository.commit({"a.py": b"1\n"}, message="Start the whole project")
    person.applies(REGISTRY.format(path=repository.path))

    assert (
        "Nothing of 'payments' is indexed yet" in person.types("eval", "--from-history", "payments", exit_code=4).stderr
    )
    person.types("sync")
    refused = person.types("eval", "--from-history", "payments", exit_code=4).stderr
    assert (
        "None of the 1 commits of 'payments' that could be read is a question: 1 no parent to compare with" in refused
    )
    assert "'payment'" in person.types("eval", "--from-history", "payment", exit_code=3).stderr
    assert "Give a file of questions, or --from-history NAME" in person.types("eval", exit_code=2).stderr
    person.types("eval", "a.yaml", "--from-history", "payments", exit_code=2)
    person.types("eval", "a.yaml", "--last", "3", exit_code=2)
    assert person.asks("eval", "--from-history", "payments", exit_code=4)["error"]["code"] == "NO_QUESTIONS"
    for last in ("0", "2001"):
        refused = person.types("eval", "--from-history", "payments", "--last", last, exit_code=2).stderr
        assert "Invalid arguments: `last`" in refused


OUT_OF_PLACE = {
    ("a.yaml", "--replay", "--save", "b.yaml"): "--replay and --save cannot be used with a file of questions",
    ("--compare", "a.json", "b.json", "--last", "0"): "--last cannot be used with --compare",
    ("--compare", "a.json", "b.json", "--misses"): "--misses cannot be used with --compare",
    ("--from-history", "payments", "--past", "--last", "3"): "--last cannot be used with --past",
    ("--from-history", "payments", "--past", "--save", "a.yaml"): "--save cannot be used with --past",
    ("--from-history", "payments", "--past", "--replay"): "--replay cannot be used with --past",
    ("--from-history", "payments", "--past", "--misses"): "--misses cannot be used with --past",
}


@pytest.mark.parametrize("options", OUT_OF_PLACE, ids=" ".join)
def test_an_option_that_would_be_ignored_is_a_usage_error(person: Person, options: tuple[str, ...]):
    assert OUT_OF_PLACE[options] in person.types("eval", *options, exit_code=2).stderr


def test_two_evaluations_are_compared_question_by_question(developed: Person):
    found = developed.asks("eval", "--from-history", "payments")
    worse = json.loads(json.dumps(found))
    worse["answers"][-1]["ranks"]["words"] = [10]
    del worse["answers"][0]
    for name, document in (("before.json", found), ("after.json", worse)):
        (developed.home / name).write_text(json.dumps(document))

    compared = developed.asks("eval", "--compare", "before.json", "after.json")
    shown = developed.types("eval", "--compare", "before.json", "after.json").stdout.splitlines()

    assert (compared["questions"], compared["unpaired"]) == (3, 1)
    mrr = compared["figures"]["mrr"]
    assert (mrr["wins"], mrr["losses"]) == (0, 1)
    assert mrr["difference"]["mean"] == pytest.approx(mrr["after"] - mrr["before"]) == pytest.approx(-0.3)
    assert mrr["difference"]["low"] <= -0.3 <= mrr["difference"]["high"] <= 0
    assert shown[0] == "3 questions of both: by words, then by words; 1 that only one of them has are left out"

    same = developed.asks("eval", "--compare", "before.json", "before.json")
    assert same["figures"]["ndcg"]["difference"] == {"mean": 0, "low": 0, "high": 0}


BROKEN = ("", "[]", "{}", '{"answers": []}', "\x00", "[" * 100_000, "null", '{"repository": "a"}')


def test_files_that_are_no_results_cannot_be_compared(person: Person):
    for number, text in enumerate(BROKEN):
        (person.home / f"{number}.json").write_text(text)
        refused = person.types("eval", "--compare", f"{number}.json", f"{number}.json", exit_code=2).stderr
        assert "has no results of an evaluation" in refused
    assert "There is no results file" in person.types("eval", "--compare", "a", "b", exit_code=2).stderr
