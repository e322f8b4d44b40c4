"""Somebody who has read one page, with a stopwatch: from an empty home to an answer about a project of their own."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.newcomer import programs_in
from tests.docs.pages import Page, pages
from tests.docs.shell import typed
from tests.docs.worlds import TOKEN, newcomer_to
from tests.fixtures.terminal import Terminal

QUESTIONS = ("GitLab address", "Access token (not shown)", "Name", "Numbers, or a name", "Numbers, or a name, or Enter")
"""Lines of the dialogue on the page that a person ends."""


def page_of_the_first_minutes() -> Page:
    (page,) = (page for page in pages() if page.name == "docs/start-with-gitlab.md")
    return page


def dialogue(page: Page) -> Iterator[tuple[str, str]]:
    """The lines of the dialogue that the page shows, each with what the person types behind it."""
    (shown,) = (fence.text for fence in page.fences if fence.words == ("text",))
    for line in shown.splitlines()[1:]:
        question, _, answer = line.partition(": ")
        is_question = question.rstrip(":").partition(" [")[0].startswith(QUESTIONS)
        yield (question.rstrip(":"), answer) if is_question else (line, "")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory, warm_program: str) -> Path:
    return programs_in(tmp_path_factory.mktemp("programs") / "bin", warm_program)


def test_one_page_leads_from_an_empty_home_to_an_answer(
    programs: Path, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    page, began = page_of_the_first_minutes(), time.monotonic()
    times: dict[str, float] = {}
    with newcomer_to(page, tmp_path, programs, request) as newcomer:
        del newcomer.environment["GITLAB_TOKEN"]
        newcomer.run("unset GITLAB_TOKEN")
        command = [sys.executable, "-m", "reposync", "init"]
        environment = {"HOME": str(newcomer.home), "PATH": str(programs), "PYTHONPATH": ":".join(sys.path)}
        with Terminal(command, env=environment, folder=newcomer.home) as terminal:
            for line, answer in dialogue(page):
                terminal.reads(newcomer.localised(line))
                if line.startswith(QUESTIONS):
                    terminal.types(TOKEN if line.startswith("Access token") else newcomer.localised(answer))
            assert terminal.ends() == 0, terminal.shown
        times["init"] = time.monotonic() - began
        for command_ in (each for fence in page.console for each in typed(fence)):
            if re.match(r"uv |export |reposync init ", command_.line):
                continue  # installed already, and answered in the dialogue
            newcomer.types(command_)
            times[command_.without_remark] = time.monotonic() - began

    assert any(line.startswith("reposync search") for line in times)
    with capsys.disabled():
        print("\nstopwatch:", *(f"{seconds:6.1f} s  {line}" for line, seconds in times.items()), sep="\n  ")
