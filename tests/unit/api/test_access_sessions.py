from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.api.auth import Access
from reposync.api.service_tokens import Token
from reposync.config.settings import ApiToken

READ = ApiToken.parse("read:a-secret-for-reading")
OPERATE = ApiToken.parse("operate:a-secret-to-operate")


@pytest.mark.parametrize(
    ("passed_seconds", "lives"),
    [(0, True), (-30, True), (-90, False), (-3_600, False), (11 * 3600, True), (12 * 3600 + 60, False)],
)
def test_a_session_lasts_twelve_hours_and_a_clock_that_is_a_little_behind_takes_it(
    passed_seconds: int, lives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Access([READ])
    cookie = Token(READ, 1).begin()
    later = time.time() + passed_seconds
    monkeypatch.setattr(time, "time", lambda: later)
    assert (held.session(cookie) is not None) is lives
    assert READ.secret.get_secret_value() not in cookie
    assert cookie.isascii() and " " not in cookie and ";" not in cookie


@given(st.text(max_size=80), st.integers(0, 79), st.sampled_from("Aa0.-_"))
def test_nothing_that_was_made_up_or_changed_is_a_session(text: str, position: int, letter: str) -> None:
    held = Access([READ, OPERATE])
    cookie = Token(READ, 1).begin()
    changed = cookie[:position] + letter + cookie[position + 1 :]
    made_up = f"{Token(READ, 1).key_id}.{text}"

    assert held.session(text) is None
    assert held.session(made_up) is None
    assert held.session(cookie * 20) is None
    assert changed == cookie or held.session(changed) is None
