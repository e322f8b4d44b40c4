"""How a new version of an index replaces the live one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from reposync.config import fields
from reposync.config.fields import Maybe, Unfit
from reposync.config.section import Section


class IndexConfig(Section):
    """A change takes effect without a restart, except for runs under way."""

    keep_retired_seconds: fields.Duration = Field(
        0.0,
        alias="keep_retired",
        description="How long a replaced version of an index is kept before it is deleted: 30m, 24h, 7d, or seconds.",
    )
    gate: Maybe[fields.LocalPath] = Field(
        None,
        description="File of questions that a new version of an index is measured with before it replaces the live "
        "one; a relative path starts at the folder of this file.",
    )
    must_not_fall: Annotated[float, Field(ge=0, le=1), fields.DECIMAL] = Field(
        0.02, description="With `gate`: how much lower recall@10, MRR@10 and NDCG@10 of the new version may be."
    )

    @field_validator("gate")
    @classmethod
    def _is_there(cls, path: Path | None) -> Path | None:
        if path is None:
            return None
        try:
            is_file = path.is_file()
        except OSError:  # no permission, a name that is too long
            is_file = False
        if not is_file:
            raise Unfit("names no file on this machine")
        return path
