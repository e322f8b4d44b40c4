"""Sets of repositories that somebody may see."""

from __future__ import annotations

import dataclasses

from reposync.operations.core import Actor
from reposync.visible import EVERYTHING, NOTHING, Visible

FIRST, BOTH = Visible(frozenset({"1"})), Visible(frozenset({"1", "2"}))


def test_two_limits_leave_what_is_in_both():
    assert FIRST & BOTH == BOTH & FIRST == FIRST
    assert FIRST & NOTHING == NOTHING & EVERYTHING == NOTHING
    assert FIRST & EVERYTHING == EVERYTHING & FIRST == FIRST
    assert EVERYTHING & EVERYTHING == EVERYTHING


def test_everything_has_repositories_that_are_registered_later_and_nothing_has_none():
    assert "3" in EVERYTHING and "3" not in BOTH and "1" not in NOTHING


def test_nobody_can_be_made_without_a_decision_about_what_they_see():
    fields = {field.name: field for field in dataclasses.fields(Actor)}
    for name in ("visible", "maintains"):
        assert fields[name].default is dataclasses.MISSING and fields[name].default_factory is dataclasses.MISSING
