"""A secret that was found in a file, as the rooms hand it to each other, and the masks in a text that is shown."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

FILL: Final = "·"
"""A mask is `[`, the kind of the secret, at least one of these, and `]`."""
_MASK: Final = re.compile(r"\[[a-z][a-z0-9-]*·+\]")


@dataclass(frozen=True, slots=True)
class Finding:
    """A secret, without its value. `rule`: the kind. `fingerprint`: a keyed hash of the value, 16 hex digits.
    `action`: mask, skip or warn."""

    line: int
    rule: str
    fingerprint: str
    action: str


def count_masks(text: str) -> int:
    """How many secrets were masked in this text. A mask that is cut at an end of the text does not count."""
    return len(_MASK.findall(text)) if FILL in text else 0


def masks_words(count: int) -> str:
    return "1 secret" if count == 1 else f"{count:,} secrets"
