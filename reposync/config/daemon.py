"""How the daemon works: how much at a time, how patiently, and how long it remembers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from reposync.config import fields
from reposync.config.fields import Maybe, Unfit
from reposync.config.section import Section

LOCK_SECONDS = 1800.0
"""The time to live of a repository's Redis lock, which a watchdog extends as long as the sync goes on."""


class DaemonConfig(Section):
    """What `reposync serve` goes by. A change takes effect without a restart, but for runs under way."""

    concurrency: Annotated[int, Field(ge=1, le=256), fields.WHOLE] = Field(4, description="Runs at a time in one pod.")
    misfire_grace_seconds: Annotated[float, Field(ge=0, le=86_400), fields.DECIMAL] = Field(
        300.0, description="A tick noticed later than this is not run any more, and the history says so."
    )
    max_attempts: Annotated[int, Field(ge=1, le=100), fields.WHOLE] = Field(
        3, description="Attempts of a run before it ends as failed."
    )
    retry_seconds: Annotated[float, Field(gt=0, le=3600), fields.DECIMAL] = Field(
        10.0, description="Before the second attempt; doubled for each further one, with jitter."
    )
    retry_max_seconds: Annotated[float, Field(gt=0, le=86_400), fields.DECIMAL] = Field(
        600.0, description="The longest pause between two attempts."
    )
    lease_seconds: Annotated[float, Field(ge=1, le=600), fields.DECIMAL] = Field(
        15.0,
        description="After this long a run whose pod died is taken over; a third of it is the heartbeat.",
    )
    lock_watchdog_seconds: Maybe[Annotated[float, Field(ge=0.1, le=LOCK_SECONDS * 0.75), fields.DECIMAL]] = Field(
        None, description="How often the 30 minutes of a Redis lock begin anew; null: every 10 minutes."
    )
    fair_share_seconds: Annotated[float, Field(gt=0, le=86_400), fields.DECIMAL] = Field(
        300.0, description="A run that takes longer lets waiting repositories go first, and then goes on."
    )
    shutdown_grace_seconds: Annotated[float, Field(ge=0, le=3600), fields.DECIMAL] = Field(
        20.0, description="What runs under way get on SIGTERM before they are handed back."
    )
    history_days: Maybe[Annotated[float, Field(gt=0, le=36_500), fields.DECIMAL]] = Field(
        90.0, description="Runs that ended longer ago are deleted from the execution log; null: never."
    )

    @field_validator("retry_max_seconds")
    @classmethod
    def _not_below_the_first(cls, longest: float, info: ValidationInfo) -> float:
        first = info.data.get("retry_seconds", longest)
        if longest < first:
            raise Unfit(f"must be at least `retry_seconds`, which is {first:g}")
        return longest
