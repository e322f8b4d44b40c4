"""What the models of the queue share: a store that a state machine works on, emptied for each example."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from sqlalchemy import text

from reposync.store.database import Database
from tests.fixtures.examples import SLOW_EXAMPLES
from tests.integration.store.conftest import Store

START = datetime(2026, 3, 1, tzinfo=UTC)


class Model(RuleBasedStateMachine):
    url: str
    loop: asyncio.AbstractEventLoop
    repositories: Sequence[str]

    def __init__(self) -> None:
        super().__init__()
        self.database: Database = self.do(Database.open(self.url))
        self.store = Store(self.database)
        self.clock = START
        self.do(self._empty())

    def do(self, what: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(what)

    async def _empty(self) -> None:
        async with self.database.write() as connection:
            for table in ("run_requests", "missed_ticks", "sync_runs", "repositories"):
                await connection.execute(text(f"DELETE FROM {table}"))
        for name in self.repositories:
            await self.store.repository(name)

    def teardown(self) -> None:
        self.do(self.work_off())
        self.do(self.database.close())

    async def work_off(self) -> None:
        """Every run that waits or executes can be ended by workers that do nothing else."""
        raise NotImplementedError


def keeps_its_promises(model: type[Model], url: str, *, steps: int) -> None:
    with asyncio.Runner() as runner:
        kept = type("Kept", (model,), {"url": url, "loop": runner.get_loop()})
        run_state_machine_as_test(kept, settings=settings(max_examples=SLOW_EXAMPLES, stateful_step_count=steps))
