"""A chunk cut into what a model with a short window can read."""

from __future__ import annotations


def windows(text: str, window_chars: int) -> list[str]:
    """Consecutive pieces of `text`, each of 1 to `window_chars` characters; joined they are `text` again.

    Whole lines are packed into a window as long as they fit; a longer line is cut, at its last blank where there is
    one in the second half of the window. An empty text has no window. Raises ValueError where `window_chars` < 1.
    """
    if window_chars < 1:
        raise ValueError(f"a window has at least one character, not {window_chars}")
    pieces: list[str] = []
    start, end = 0, len(text)
    while end - start > window_chars:
        cut = _last_break(text, start, start + window_chars)
        pieces.append(text[start:cut])
        start = cut
    if start < end:
        pieces.append(text[start:])
    return pieces


def readable_windows(text: str, window_chars: int) -> list[str]:
    """The windows to embed: a blank one has nothing to say, and its vector would be near to anything.

    At least one: of a blank text the first, of an empty text a single blank, since servers refuse empty inputs.
    """
    if len(text) <= window_chars:
        return [text or " "]
    pieces = windows(text, window_chars)
    return [piece for piece in pieces if not piece.isspace()] or pieces[:1]


def _last_break(text: str, start: int, limit: int) -> int:
    """Where the window that starts at `start` ends: after a line, else after a blank, else at `limit`."""
    line_end = text.rfind("\n", start, limit)
    if line_end >= 0:
        return line_end + 1
    blank = text.rfind(" ", (start + limit) // 2, limit)
    return blank + 1 if blank >= 0 else limit
