"""Secrets and what is sealed with them: only the secret opens it, and only in its own row."""

from __future__ import annotations

import base64

import pytest

from reposync.sealing import SealBroken, digest_of, key_of, new_key, new_secret, seal, unseal


def test_a_seal_opens_with_its_key_in_its_row_and_hides_the_content() -> None:
    key = new_key()
    sealed = seal(key, b"glpat-secret", "row 1")

    assert unseal(key, sealed, "row 1") == b"glpat-secret"
    assert b"glpat" not in base64.b64decode(sealed)
    assert sealed != seal(key, b"glpat-secret", "row 1"), "two seals of one text do not show that they are the same"


def test_a_seal_does_not_open_with_another_key_in_another_row_or_after_a_change() -> None:
    key = new_key()
    sealed = seal(key, b"content", "row 1")
    raw = base64.b64decode(sealed)
    changed = base64.b64encode(raw[:-1] + bytes([raw[-1] ^ 1])).decode()

    for wrong in ((new_key(), sealed, "row 1"), (key, sealed, "row 2"), (key, changed, "row 1"), (key, "?", "row 1")):
        with pytest.raises(SealBroken):
            unseal(*wrong)
    with pytest.raises(SealBroken):
        unseal(key, "", "row 1")


def test_what_the_database_knows_of_a_secret_does_not_open_what_it_seals() -> None:
    secret = new_secret("rst_")

    assert secret.startswith("rst_") and len(secret) >= 47
    assert digest_of(secret) != key_of(secret, "grant").hex()
    assert key_of(secret, "grant") != key_of(secret, "something else")
    assert new_secret("rst_") != secret
