"""Decodes the bytes of a blob.

A byte order mark first, then UTF-8, then what the file declares, then a guess from a bounded sample. Every returned
text is valid for JSON, PostgreSQL and Qdrant: no NUL, no lone surrogates. Line breaks are kept.
"""

from __future__ import annotations

import codecs
import re
from functools import cache
from typing import Final

from reposync.content.encodings import likely_encodings, mixes_scripts
from reposync.content.model import Skip, Skipped

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"

_BINARY_PROBE: Final = 8000
"""git treats a blob with a NUL in its first 8000 bytes as binary (`buffer_is_binary`); so do we."""

_SAMPLE: Final = 2048
"""An encoding is chosen by this many bytes of the lines that are not ASCII."""

_TEXT_BYTES: Final = bytes({7, 8, 9, 10, 11, 12, 13, 27} | set(range(0x20, 0x7F)) | set(range(0x80, 0x100)))
_NOT_ASCII_LINE: Final = re.compile(rb"[^\n]*[\x80-\xff][^\n]*\n?")

_ASCII: Final = bytes(range(0x80))
_RARE: Final = ["cp1256", "cp1257", "iso8859_5", "johab", "mac_roman", "tis_620"]
"""Encodings that are left to a detector: Arabic, Baltic, Cyrillic, Korean, Western, Thai."""
_MIN_GUESSED: Final = 200
"""Bytes outside ASCII. With fewer a detector takes Chinese for Arabic, and Polish for Turkish."""

_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark is a prefix
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)

_DECLARED: Final = re.compile(rb"(?:coding|charset)\s{0,4}[:=]\s{0,4}[\"']?([A-Za-z0-9][\w.:-]{1,30})", re.IGNORECASE)
"""PEP 263, Emacs, Vim, XML, HTML, CSS."""

_ENCODINGS: Final = frozenset(
    ["big5", "big5hkscs", "cp037", "cp437", "cp500", "cp720", "cp737", "cp775", "cp932", "cp949", "cp950"]
    + [f"cp{number}" for number in (850, 852, 855, 857, 858, 860, 861, 862, 863, 865, 866, 869, 874)]
    + [f"cp{number}" for number in range(1250, 1259)]
    + [f"iso8859-{part}" for part in range(1, 17) if part != 12]
    + ["euc_jp", "euc_kr", "gb18030", "gb2312", "gbk", "johab"]
    + ["koi8-r", "koi8-u", "mac-cyrillic", "mac-greek", "mac-roman", "shift_jis", "shift_jis_2004", "tis-620"]
)
"""Encodings that a file may declare. Python has more that are not for text files, or slow (punycode, idna)."""

_LFS_PREFIXES: Final = (b"version https://git-lfs.github.com/spec/", b"version https://hawser.github.com/spec/")
_LFS_LONGEST: Final = 1024
_LFS_OID: Final = re.compile(rb"^oid [a-z0-9]+:[0-9a-f]{32,}\r?$", re.MULTILINE)


def is_lfs_pointer(content: bytes) -> bool:
    """Whether this is a Git LFS pointer. By its specification: under 1024 bytes, first the version, then an oid."""
    return len(content) < _LFS_LONGEST and content.startswith(_LFS_PREFIXES) and _LFS_OID.search(content) is not None


def decode(content: bytes) -> str | Skipped:
    """Text of a blob, its byte order mark removed, a NUL as U+FFFD; or Skipped: LFS_POINTER, EMPTY (white space alone),
    BINARY, UNDECODABLE."""
    if is_lfs_pointer(content):
        return Skipped(Skip.LFS_POINTER, "a Git LFS pointer: the file itself is not in the repository")
    text = _decoded(content)
    if isinstance(text, Skipped):
        return text
    if not text or text.isspace():
        return Skipped(Skip.EMPTY, "no text in the file" if text else "the file is empty")
    return text


def _decoded(content: bytes) -> str | Skipped:
    for mark, encoding in _BOMS:
        if content.startswith(mark):
            return _marked(content[len(mark) :], encoding)
    probe = content[:_BINARY_PROBE]
    if b"\0" in probe:
        return Skipped(Skip.BINARY, f"a NUL byte in the first {_BINARY_PROBE} bytes")
    controls = len(probe.translate(None, _TEXT_BYTES))
    if controls * 10 > len(probe):
        return Skipped(Skip.BINARY, "more than a tenth of its beginning are control characters")
    try:
        return _storable(content.decode())
    except UnicodeDecodeError:
        pass
    if b"\0" in content or controls * 100 > len(probe):
        return Skipped(Skip.BINARY, "neither UTF-8 nor free of control characters")
    text = _declared(content) or _damaged(content) or _guessed(content)
    return text or Skipped(Skip.UNDECODABLE, "neither UTF-8 nor an encoding that could be detected with confidence")


def _marked(body: bytes, encoding: str) -> str | Skipped:
    try:
        text = body.decode(encoding)
    except UnicodeDecodeError:
        if encoding == "utf-8":
            return _damaged(body) or Skipped(Skip.UNDECODABLE, "marked as UTF-8, which it is not")
        return Skipped(Skip.BINARY, f"starts like {encoding.upper()}, which it is not")
    if text.count("\0") * 100 > len(text):
        return Skipped(Skip.BINARY, f"NUL characters in {encoding.upper()} text")
    return _storable(text)


def _storable(text: str) -> str:
    """PostgreSQL's text and Qdrant's payloads take no NUL. As in CommonMark it becomes U+FFFD: offsets stay."""
    return text.replace("\0", REPLACEMENT) if "\0" in text else text


def _declared(content: bytes) -> str | None:
    head = content[:1024]
    for match in _DECLARED.finditer(head):
        try:
            name = codecs.lookup(match[1].decode("ascii")).name
        except (LookupError, ValueError):
            continue
        if name in _known_encodings() and (text := _strictly(content, name)):
            return text
    return None


@cache
def _known_encodings() -> frozenset[str]:
    return frozenset(codecs.lookup(name).name for name in _ENCODINGS)


def _strictly(content: bytes, encoding: str) -> str | None:
    """`content` decoded; None if that fails or gives characters that no text file has."""
    try:
        text = content.decode(encoding)
        text.encode()
    except (UnicodeError, LookupError):
        return None
    c1 = sum(text.count(chr(code)) for code in range(0x80, 0xA0) if code != 0x85)
    private = 0 if text.isascii() else len(re.findall("[\ue000-\uf8ff]", text))
    return None if c1 or private else _storable(text)


def _damaged(content: bytes) -> str | None:
    """UTF-8 with a few broken bytes (a truncated or pasted line), which become U+FFFD. Only if valid sequences are
    clearly the rule: in other encodings they hardly occur by chance."""
    text = content.decode("utf-8", "replace")
    broken = text.count(REPLACEMENT)
    whole = len(text) - broken - len(content.translate(None, bytes(range(0x80, 0x100))))
    return _storable(text) if whole >= 4 * broken else None


def _guessed(content: bytes) -> str | None:
    sample = _sample(content)
    for encoding in likely_encodings(sample):
        if text := _strictly(content, encoding):
            return text
    if len(sample.translate(None, _ASCII)) < _MIN_GUESSED:
        return None
    from charset_normalizer import from_bytes  # 30 ms to import, rarely needed

    for guess in from_bytes(sample, cp_isolation=_RARE, preemptive_behaviour=False, enable_fallback=False):
        if not mixes_scripts(str(guess)) and (text := _strictly(content, guess.encoding)):
            return text
    return None


def _sample(content: bytes) -> bytes:
    """Lines that are not ASCII, cut between characters: no multibyte character has a trail byte below 0x30."""
    sample = bytearray()
    for match in _NOT_ASCII_LINE.finditer(content):
        sample += match[0][: 2 * _SAMPLE]
        if len(sample) > _SAMPLE:
            safe = max(sample.rfind(mark, 0, _SAMPLE) for mark in (b" ", b"\n", b",", b'"', b"("))
            return bytes(sample[: safe + 1 if safe > 0 else _SAMPLE])
    return bytes(sample)
