"""Names of branches, and what is said about one that is not there."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from reposync.errors import BranchNotFound

HEADS = b"refs/heads/"


def branch_name(ref: bytes) -> str | None:
    """The name of the branch that `ref` is; None for any other ref."""
    return ref.removeprefix(HEADS).decode(errors="replace") if ref.startswith(HEADS) else None


def branch_not_found(branch: str, names: Sequence[str], where: str) -> BranchNotFound:
    """The error for a branch that is not among `names`, with those that look like it first."""
    near = difflib.get_close_matches(branch, names, n=3, cutoff=0.5)
    if near:
        remedy = f"Did you mean {' or '.join(near)}?"
    else:
        remedy = f"Its branches: {', '.join(names[:5])}{' and more' if len(names) > 5 else ''}."
    return BranchNotFound(f"{where} has no branch {branch!r}.", remedy=remedy)
