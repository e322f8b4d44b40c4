"""Which older encoding a text has: the one in which its bytes outside ASCII are the cheapest to write down.

A statistical detector needs hundreds of bytes, a source file has a comment or two. So each encoding is tried with each
of its languages, and every character costs as many bits as it is rare in that language (`letters`), or out of place: a
letter of a different script within a word of ASCII letters, a capital after a small letter, a quotation mark between
letters. The fewest bits win, unless they are as many as random bytes take, or an encoding of a different script is
about as good: what would be a guess is not read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from reposync.content.letters import BITS

_MOST_BITS: Final = 6.8
"""The bits of a byte of text. Text takes 2 (German) to 6 (a word of rare characters); all letters of cp1251 at random
take 7."""
_MOST_LATIN_BITS: Final = 11
"""The bits of a byte, if what the bytes are in leaves no doubt about the script: also letters of other languages."""
_MARGIN: Final = 4
"""Bits by which the best encoding is better than those of other scripts: 16 times as likely."""

# What is no text of a language costs so many bits.
_UNKNOWN_LETTER: Final = 10
_UNKNOWN_CHARACTER: Final = 15
_OTHER_SYMBOL: Final = 8
_OUT_OF_PLACE: Final = 6
_ALONE: Final = 2
_IN_PLACE: Final = 3
"""Bits that a final letter takes less at the end of a word than anywhere."""
_PUNCTUATION: Final = 6

_ASCII: Final = re.compile("[\0-\x7f]+")
_NOT_ASCII: Final = re.compile("[^\0-\x7f]+")
_WORD: Final = re.compile(r"[^\W\d_]+")
_LETTER: Final = r"[^\W\d_ªº]"
_RUN: Final = re.compile(rb"[A-Za-z]?[\x80-\xff]+[A-Za-z]?")
_SYMBOLS: Final = re.compile(rb"[\x85\x91-\x97\xa0\xa7\xa9\xab\xb0\xbb\xd7]{1,2}")
_LATIN_RUN: Final = re.compile(
    rb"[A-Za-z]L{1,2}[A-Za-z]?|L{1,2}[A-Za-z]|L|[A-Za-z][\xb2\xb3]|\xb5[A-Za-z]".replace(
        b"L", rb"[\x8a\x8c\x8e\x9a\x9c\x9e\x9f\xc0-\xd6\xd8-\xf6\xf8-\xff]"
    )
)
_USUAL_SYMBOLS: Final = frozenset("\xa0«»“”„‘’–—…°©§²×·€®")
_USUAL_BITS: Final = 4
_MISPLACED_SYMBOL: Final = re.compile(rf"(?<={_LETTER})[^\x00-\x7f\w’·\xad](?={_LETTER})|(?<={_LETTER})[¿¡„](?!\w)")


@dataclass(frozen=True, slots=True)
class _Script:
    """`misplaced`: letters where its words have none. `final`: letters in the only place for them."""

    encodings: tuple[tuple[str, int, tuple[str, ...]], ...]
    misplaced: re.Pattern[str] = re.compile(r"(?!)")
    final: re.Pattern[str] = re.compile(r"(?!)")


_WESTERN: Final = ("german", "french", "spanish", "portuguese", "italian", "catalan", "swedish", "danish", "dutch")
_NORTHERN: Final = ("icelandic", "estonian")
_CENTRAL: Final = ("polish", "czech", "slovak", "hungarian", "croatian", "romanian")
_CYRILLIC: Final = ("russian", "ukrainian", "bulgarian", "serbian")

_LATIN: Final = _Script((
    ("cp1252", 0, (*_WESTERN, *_NORTHERN)),
    ("cp1250", 1, _CENTRAL),
    ("iso8859-2", 1, _CENTRAL),
    ("cp1254", 2, ("turkish",)),
    ("cp1257", 8, ("lithuanian", "latvian")),
    ("cp850", 3, _WESTERN),
))  # fmt: skip
"""Encoding, how many bits rarer its files are, and the languages that it is used for."""
_ALPHABETS: Final = {
    "cyrillic": _Script(
        (
            ("cp1251", 1, _CYRILLIC),
            ("koi8-r", 1, ("russian", "bulgarian")),
            ("koi8-u", 2, ("ukrainian",)),
            ("cp866", 2, _CYRILLIC),
        ),
        re.compile(r"\b[ъьы]|[ъь][ъьы]"),
    ),
    "greek": _Script(
        (("cp1253", 1, ("greek",)), ("iso8859-7", 2, ("greek",))),
        re.compile(r"ς(?=\w)|σ\b|[άέήίόύώΐΰ](?=\w*[άέήίόύώΐΰ])"),
        re.compile(r"ς\b"),
    ),
    "hebrew": _Script((("cp1255", 1, ("hebrew",)),), re.compile(r"[ךםןףץ](?=\w)|[כמנפצ]\b"), re.compile(r"[ךםןףץ]\b")),
    "hebrew in visual order": _Script(
        (("cp1255", 2, ("hebrew",)),), re.compile(r"(?<=\w)[ךםןףץ]|\b[כמנפצ]"), re.compile(r"\b[ךםןףץ]")
    ),
    "arabic": _Script((("cp1256", 2, ("arabic",)),)),
}
_TWO_BYTES: Final = (
    ("cp932", "japanese"),
    ("euc_jp", "japanese"),
    ("euc_kr", "korean"),
    ("gb18030", "simplified"),
    ("big5", "traditional"),
    ("cp874", "thai"),
)


def likely_encodings(sample: bytes) -> Iterator[str]:
    """The encodings in which `sample`, whole lines with bytes outside ASCII, is text; the likeliest first."""
    is_latin = _has_latin_words(sample)
    limit = (_MOST_LATIN_BITS if is_latin else _MOST_BITS) * len(_outside(sample))
    costs = [(bits, "latin", encoding) for encoding, bits in _costs_of_letters(sample, _LATIN, is_latin=True)]
    if not is_latin:
        for name, script in _ALPHABETS.items():
            costs += [(bits, name, encoding) for encoding, bits in _costs_of_letters(sample, script)]
        costs += [
            (bits, language, encoding)
            for encoding, language in _TWO_BYTES
            if (bits := _cost_of_characters(sample, encoding, BITS[language])) is not None
        ]
    costs.sort(key=lambda each: each[0])
    best = costs[0] if costs else None
    if best is None or any(
        bits < best[0] + _MARGIN and sample.decode(encoding) != sample.decode(best[2])
        for bits, script, encoding in costs
        if script != best[1]
    ):
        return
    yield from (encoding for bits, script, encoding in costs if script == best[1] and bits <= limit)


def mixes_scripts(text: str) -> bool:
    """Whether words have ASCII letters and those of a different script in them: a wrong guess."""
    words = [word for word in _WORD.findall(text) if not word.isascii()]
    mixed = sum(re.search("[A-Za-z]", word) is not None and max(word) > "\u024f" for word in words)
    return bool(mixed * 20 > len(words))


def _outside(sample: bytes) -> bytes:
    return sample.translate(None, bytes(range(0x80)))


def _has_latin_words(sample: bytes) -> bool:
    """Whether nearly all letters outside ASCII are in cp1252 one or two in a word of ASCII letters, or alone, as in
    `Gr\xf6\xdfe` and `\xe0`: no other script is written so."""
    runs = [run for run in _RUN.findall(sample) if not _SYMBOLS.fullmatch(run)]
    latin = sum(len(_outside(run)) for run in runs if _LATIN_RUN.fullmatch(run))
    return latin > 0 and latin >= 0.9 * sum(len(_outside(run)) for run in runs)


def _costs_of_letters(sample: bytes, script: _Script, *, is_latin: bool = False) -> Iterator[tuple[str, int]]:
    """For each encoding in which `sample` is valid, the bits in the language that takes the fewest."""
    for encoding, rarer, languages in script.encodings:
        try:
            text = sample.decode(encoding)
        except UnicodeDecodeError:
            continue
        words = Counter(word for word in _WORD.findall(text) if not word.isascii())
        letters: Counter[str] = Counter()
        bits = rarer + _cost_of_symbols(text)
        for word, times in words.items():
            own = _ASCII.sub("", word)
            for letter in own.lower():
                letters[letter] += times
            bits += times * (_out_of_latin_place(word, own) if is_latin else _out_of_place(word, own, script))
        yield encoding, bits + min(_cost(letters, BITS[language], _UNKNOWN_LETTER) for language in languages)


def _cost(letters: Mapping[str, int], bits: Mapping[str, int], unknown: int) -> int:
    return sum(times * bits.get(letter, unknown) for letter, times in letters.items())


def _cost_of_symbols(text: str) -> int:
    symbols = Counter(char for char in _ASCII.sub("", text) if not char.isalpha())
    misplaced = len(_MISPLACED_SYMBOL.findall(text))
    usual = sum(symbols[char] for char in _USUAL_SYMBOLS)
    return _USUAL_BITS * usual + _OTHER_SYMBOL * (symbols.total() - usual) + _UNKNOWN_LETTER * misplaced


def _case(word: str, own: str) -> int:
    if word.islower() or word.upper() == word.lower():
        return 0
    if word.isupper():
        return len(own)
    return sum(_OUT_OF_PLACE for letter in word[1:] if letter > "\x7f" and letter.isupper()) + (word[0] > "\x7f")


def _out_of_latin_place(word: str, own: str) -> int:
    """Letters outside ASCII stand alone among those of ASCII; few words have none of these."""
    if len(own) == len(word):
        return _case(word, own) + (_ALONE if len(own) == 1 else _OUT_OF_PLACE * len(own))
    return _case(word, own) + 2 * (len(own) - len(_NOT_ASCII.findall(word)))


def _out_of_place(word: str, own: str, script: _Script) -> int:
    bits = _case(word, own) + _OUT_OF_PLACE * min(len(own), len(word) - len(own))
    if len(word) == 1:
        bits += _USUAL_BITS
    word = word.lower()
    return bits + _OUT_OF_PLACE * len(script.misplaced.findall(word)) - _IN_PLACE * len(script.final.findall(word))


_LONE: Final = re.compile(
    r"(?<=[A-Za-z])[^\x00-\x7f](?![^\x00-\x7f])|(?<![^\x00-\x7f])[^\x00-\x7f](?=[A-Za-z])"
    "|(?<![\u0e01-\u0e2e])[\u0e34-\u0e39]"
)
"""A character alone beside a word of ASCII letters; a Thai vowel without its consonant."""
_FULL_WIDTH: Final = re.compile("[\u3000-\u3020\u30fb\uff01-\uff5e“”‘’…—·]")


def _cost_of_characters(sample: bytes, encoding: str, bits: Mapping[str, int]) -> int | None:
    try:
        text = sample.decode(encoding)
    except UnicodeDecodeError:
        return None
    characters = Counter(_ASCII.sub("", text))
    cost = _OUT_OF_PLACE * len(_LONE.findall(text))
    for character, times in characters.items():
        if character in bits:
            cost += times * bits[character]
        elif _FULL_WIDTH.match(character):
            cost += times * _PUNCTUATION
        elif "\u3040" < character < "\u3100":
            cost += times * _UNKNOWN_LETTER
        else:  # beyond Hangul are forms that only old encodings have
            cost += times * _UNKNOWN_CHARACTER * (2 if character > "\ud7a3" else 1)
    # The second byte of some characters is one of ASCII, which all other encodings must explain as ASCII.
    absorbed = len(sample) - len(_outside(sample)) - len(_NOT_ASCII.sub("", text))
    return 1 + cost - 5 * absorbed
