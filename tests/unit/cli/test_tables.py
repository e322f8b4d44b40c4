"""What of a table and of a sentence a terminal shows that is too narrow for it, and which colors."""

from __future__ import annotations

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.cli.tables import table
from reposync.cli.terminal import cells, color_of, cut, wrapped

RUN = {
    "run": "82bac88e",
    "repository": "platform/payments/payments-service-with-a-long-name",
    "status": "completed",
    "queued": None,
    "stored": 1_203,
    "source": "/srv/git/platform/payments/payments-service-with-a-long-name.git",
}


def lines(width: int | None, **others: object) -> list[str]:
    shown = table([RUN | others], "run", "repository", "status", "stored").lines(width)
    return [click.unstyle(line) for line in shown]


def test_a_narrow_terminal_shows_the_most_important_columns_and_counts_the_others() -> None:
    assert lines(60) == [
        "run       repository                       status     stored",
        "82bac88e  …ments-service-with-a-long-name  completed   1,203",
        "2 more columns: --wide",
    ]
    assert lines(50) == [
        "run       repository                     status",
        "82bac88e  …nts-service-with-a-long-name  completed",
        "3 more columns: --wide",
    ]


def test_a_path_loses_its_start_and_a_sentence_its_end() -> None:
    assert lines(95)[1:] == [
        "82bac88e  …yments-service-with-a-long-name  completed  -        1,203  …ce-with-a-long-name.git",
        "Whole texts: --wide",
    ]
    assert cut("retrying, next attempt at 2026-03-01", 20) == "retrying, next atte…"


def test_a_pipe_gets_every_column_whole() -> None:
    head, row = lines(None)

    assert head.split() == list(RUN)
    assert row.endswith(str(RUN["source"])) and str(RUN["repository"]) in row


def test_a_column_of_failures_is_there_only_if_something_failed() -> None:
    assert "failed" not in lines(None, failed=0)[0]
    assert "failed" in lines(None, failed=3)[0]


@given(st.text(), st.integers(40, 130))
def test_no_line_of_a_table_is_wider_than_the_terminal(name: str, width: int) -> None:
    assert all(cells(line) <= width for line in lines(width, repository=name))


@given(st.text(st.sampled_from("aé漢 \t`"), max_size=200), st.integers(40, 80))
def test_wrapping_loses_no_word_and_breaks_none(text: str, width: int) -> None:
    shown = wrapped(text, width)

    assert shown.split() == text.split()
    assert all(cells(line) <= width or len(line.split("`")[0].split()) <= 1 for line in shown.split("\n"))


def test_a_command_stays_on_one_line() -> None:
    text = "Nothing was deleted. If that is right, approve it with `reposync sync billing --allow-mass-delete`."

    assert wrapped(f"  {text}", 60) == (
        "  Nothing was deleted. If that is right, approve it with\n    `reposync sync billing --allow-mass-delete`."
    )
    assert wrapped(text, 60, hang=20).endswith("\n                `reposync sync billing --allow-mass-delete`.")
    assert wrapped(text, None) == text


@pytest.mark.parametrize(
    ("words", "environ", "color"),
    [
        ("history", {}, None),
        ("history", {"NO_COLOR": "1", "CLICOLOR_FORCE": "1"}, False),
        ("history", {"CLICOLOR_FORCE": "1"}, True),
        ("history", {"CLICOLOR_FORCE": "0"}, None),
        ("history", {"TERM": "dumb"}, False),
        ("history --color=always", {"NO_COLOR": "1"}, True),
        ("--color never history", {"CLICOLOR_FORCE": "1"}, False),
        ("history --color auto", {}, None),
        ("grep -- --color=always", {}, None),
    ],
)
def test_the_option_counts_before_the_environment(words: str, environ: dict[str, str], color: bool | None) -> None:
    assert color_of(words.split(), environ) is color
