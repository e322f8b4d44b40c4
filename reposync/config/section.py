"""What all parts of the registry have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A mapping of the YAML: frozen, unknown keys are errors, and no error echoes a value (it may be a secret)."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True)
