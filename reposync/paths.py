"""The text of git's paths, which are bytes; and paths that people type."""

from __future__ import annotations

from pathlib import Path


def path_text(path: bytes) -> str:
    """`path` as text, reversibly (see `path_bytes`): UTF-8 unchanged; otherwise, or if it starts with a double
    quote, C-quoted as git prints it (`"caf\\351.py"`), so that two paths never share a text."""
    if not path.startswith(b'"'):
        try:
            return path.decode()
        except UnicodeDecodeError:
            pass
    quoted = "".join(chr(byte) if 0x20 <= byte < 0x7F and byte not in b'"\\' else f"\\{byte:03o}" for byte in path)
    return f'"{quoted}"'


def path_bytes(text: str) -> bytes:
    """The inverse of `path_text`. Raises ValueError for a text that `path_text` never returns."""
    if not text.startswith('"'):
        return text.encode()
    if len(text) < 2 or not text.endswith('"'):
        raise ValueError(f"not a quoted path: {text!r}")
    body, out, at = text[1:-1], bytearray(), 0
    while at < len(body):
        if body[at] == "\\":
            out.append(int(body[at + 1 : at + 4], 8))
            at += 4
        else:
            out.append(ord(body[at]))
            at += 1
    return bytes(out)


def existing_path(word: str) -> Path | None:
    """What a person means by `word`, with `~` for a home; None if there is no such file or folder."""
    try:
        path = Path(word).expanduser()
        return path if word and path.exists() else None
    except (OSError, RuntimeError, ValueError):  # a name that cannot exist, or the home of nobody
        return None
