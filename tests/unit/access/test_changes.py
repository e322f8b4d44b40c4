"""Which answers an event of GitLab outdates: rather too many than too few."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from reposync.access.changes import EVERYTHING_CHANGED, RightsChange, read_change

MEMBER = {"user_id": 41, "project_id": 74}


@pytest.mark.parametrize(
    ("event", "change"),
    [
        ({"event_name": "user_remove_from_team", **MEMBER}, RightsChange(41, 74)),
        ({"event_name": "user_update_for_group", "user_id": 41, "group_id": 78}, RightsChange(41)),
        ({"event_name": "user_destroy", "user_id": 41}, RightsChange(41)),
        ({"event_name": "project_update", "project_id": 74}, RightsChange(project_id=74)),
        ({"event_name": "project_transfer", "project_id": 74}, RightsChange(project_id=74)),
        ({"event_name": "group_rename", "group_id": 78}, EVERYTHING_CHANGED),
        ({"event_name": "group_something_new"}, EVERYTHING_CHANGED),
        ({"event_name": "user_remove_from_team", "user_id": "41"}, EVERYTHING_CHANGED),
        ({"event_name": "user_remove_from_team", "user_id": 41, "project_id": -1}, EVERYTHING_CHANGED),
        ({"event_name": "project_destroy"}, EVERYTHING_CHANGED),
        ({"event_name": "project_create", "project_id": 74}, None),
        ({"event_name": "group_create", "group_id": 78}, None),
        ({"event_name": "key_create", "user_id": 41}, None),
        ({"event_name": "push", **MEMBER}, None),
        ({"event_name": ""}, None),
    ],
)
def test_an_event_outdates_what_it_is_about(event: dict[str, Any], change: RightsChange | None) -> None:
    assert read_change(json.dumps(event).encode()) == change


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"event_name": 1}', b'{"event_name": "' + b"a" * 201 + b'"}'])
def test_what_is_no_event_is_an_error(body: bytes) -> None:
    with pytest.raises(ValidationError):
        read_change(body)


@pytest.mark.parametrize(
    "change", [RightsChange(41, 74), RightsChange(41), RightsChange(project_id=74), RightsChange()]
)
def test_other_pods_read_the_same_change(change: RightsChange) -> None:
    assert RightsChange.of_text(change.text) == change


@pytest.mark.parametrize("text", ["", "41", "x:", ":-1", "1:2:3", "\u0661:"])
def test_what_a_pod_does_not_understand_outdates_everything(text: str) -> None:
    assert RightsChange.of_text(text) == EVERYTHING_CHANGED
