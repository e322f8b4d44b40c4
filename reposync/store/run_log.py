"""The lines that daemons logged about a run: for people who do not read the logs of the pods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import and_, delete, or_, select
from sqlalchemy.exc import IntegrityError

from reposync.store.database import Stored
from reposync.store.tables import LOG_LINES

MAX_LINES = 500
"""Lines that are kept of a run, the newest ones."""
MAX_LINE_CHARS = 1_000


@dataclass(frozen=True, slots=True)
class RunLogLine:
    """A line about an attempt. `number`: its position within the attempt, from 1; `level` as in the log."""

    attempt: int
    number: int
    at: datetime
    level: str
    text: str

    @property
    def cursor(self) -> str:
        return f"{self.attempt}.{self.number}"


class RunLogs(Stored):
    async def add(self, run_id: str, lines: Sequence[RunLogLine]) -> None:
        """Lines of one attempt, which only its process writes; those that are there already stay as they are. Earlier
        ones than the newest MAX_LINES of the run are deleted. Does nothing if the run is gone."""
        if not lines:
            return
        rows = [
            {"run_id": run_id, "attempt": line.attempt, "number": line.number}
            | {"at": line.at, "level": line.level, "text": line.text}
            for line in lines
        ]
        mine, columns = LOG_LINES.c.run_id == run_id, LOG_LINES.c
        newest = select(columns.attempt, columns.number).where(mine)
        newest = newest.order_by(columns.attempt.desc(), columns.number.desc()).offset(MAX_LINES).limit(1)
        try:
            async with self._database.write() as connection:
                await connection.execute(self._database.insert(LOG_LINES).on_conflict_do_nothing(), rows)
                if (last := await connection.one_or_none(newest)) is not None:
                    same_attempt = and_(columns.attempt == last.attempt, columns.number <= last.number)
                    await connection.execute(
                        delete(LOG_LINES).where(mine, or_(columns.attempt < last.attempt, same_attempt))
                    )
        except IntegrityError:
            return  # the run was purged meanwhile
