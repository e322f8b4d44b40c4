"""A first sync with the embedded model, as somebody watches it: slow, and never without a sign of life."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from reposync.config.database_url import sqlite_url
from tests.fixtures.pods import ExecutionLog, Pod, until
from tests.fixtures.repositories import GitRepository

FUNCTION = '''
def read_{0}(path):
    """The entries of {0}, sorted by their {1}."""
    with open(path) as file:
        return sorted(file.read().split("{0}"), key=lambda entry: entry.{1})
'''
MOVED = """(before) => {
    const bar = document.querySelector("#run progress");
    return bar && bar.value > before && bar.value < bar.max ? bar.value : false;
}"""


@pytest.mark.full
def test_the_bar_moves_while_the_model_embeds_the_first_batches(page: Page, tmp_path: Path) -> None:
    repository = GitRepository.create(tmp_path / "app.git")
    repository.commit(
        {
            f"f{file}.py": "".join(FUNCTION.format(f"item_{file}_{each}", f"key_{each}") for each in range(60)).encode()
            for file in range(40)
        }
    )
    (tmp_path / "repositories.yaml").write_text(
        f"embedding: {{provider: local}}\nrepositories: [{{name: app, path: '{repository.path}'}}]\n"
    )
    with Pod("pod", tmp_path) as pod:
        log = ExecutionLog(sqlite_url(tmp_path / "state" / "reposync.db"))
        until(lambda: log.runs("app"), details=pod.log_tail)
        page.goto(f"{pod.url}/runs/{log.runs('app')[0].id}")
        expect(page.locator("#run .headline .status")).to_have_text("running")
        first = page.wait_for_function(MOVED, arg=0).json_value()
        page.wait_for_function(MOVED, arg=first)
        expect(page.locator('[data-live="chunks_per_second"]')).not_to_have_text("0.0")
        expect(page.locator('[data-live="file"]')).to_contain_text(".py")
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator("#run .headline .status")).to_have_text("cancelled")
