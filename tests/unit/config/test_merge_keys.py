"""Anchors, merge keys and `x-` keys in the registry work as they do in Compose files."""

from __future__ import annotations

from tests.unit.config.conftest import Complaints, Load

SHARED = """\
x-docs: &docs
  schedule: never
  include: ["*.md"]
x-main: &main {<<: *docs, branch: main, schedule: "@daily"}
x-notes: {anything: [1, "${NOT_SET}"], shedule: yes}
repositories:
"""


def test_a_merge_key_brings_what_the_entry_does_not_say_itself(load: Load) -> None:
    registry = load(
        f"{SHARED}  - {{path: ., name: a, <<: *docs}}\n  - {{<<: *docs, name: b, path: .., include: []}}\n"
    ).registry

    a, b = registry.resolved()

    assert (a.schedule, a.include) == (None, ("*.md",))
    assert (b.schedule, b.include) == (None, ())


def test_what_is_merged_may_merge_itself_and_the_first_of_a_list_wins(load: Load) -> None:
    registry = load(
        f"{SHARED}  - {{name: a, path: ., <<: [*docs, *main]}}\n  - {{name: b, path: .., <<: [*main, *docs]}}\n"
    ).registry

    a, b = registry.resolved()

    assert (a.schedule, a.branch, a.include) == (None, "main", ("*.md",))
    assert b.schedule is not None
    assert (b.schedule.cron, b.branch, b.include) == ("0 0 * * *", "main", ("*.md",))


def test_what_stands_in_extensions_is_read_only_where_it_is_used(complaints: Complaints) -> None:
    text = f"{SHARED}  - {{name: a, path: ., <<: &wrong {{shedule: '@daily', branch: '${{NOT_SET}}'}}}}\n"

    assert [each.split(";")[0] for each in complaints(text)] == [
        "7:36: unknown key `shedule` in repositories[0]",
        "7:63: the environment variable NOT_SET is not set",
    ]


def test_a_mistake_in_what_several_merge_is_shown_where_it_stands(complaints: Complaints) -> None:
    text = (
        "x-a: &a {max_file_bytes: 0}\nrepositories:\n  - {name: a, path: ., <<: *a}\n  - {name: b, path: x, <<: *a}\n"
    )

    assert complaints(text) == [
        "1:26: repositories[0].max_file_bytes must be at least 1",
        "1:26: repositories[1].max_file_bytes must be at least 1",
    ]


def test_variables_work_in_what_is_merged(load: Load) -> None:
    text = "x-a: &a {branch: '${BRANCH}'}\nrepositories:\n  - {name: a, path: ., <<: *a}\n"

    assert load(text, BRANCH="next").registry.repositories[0].branch == "next"


def test_a_file_that_merge_keys_blow_up_is_refused(complaints: Complaints) -> None:
    lines = ["x-a0: &a0 {k: 1}"]
    lines += [f"x-a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 9)]
    lines += ["repositories: [{<<: *a8}]"]

    assert "more than 100,000 values" in complaints("\n".join(lines))[0]
