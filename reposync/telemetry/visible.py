"""Text that came from elsewhere, made harmless for a terminal and for a log of lines."""

from __future__ import annotations


def visible(text: str) -> str:
    """`text` with everything that is not printable as an escape (`\\n`, `\\x1b`, `\\u202e`): line breaks of every kind,
    terminal sequences, overrides of the writing direction, half surrogates. A backslash stays as it is."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
