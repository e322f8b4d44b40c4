"""Which older encoding a text has, by the words that each encoding makes of it.

A statistical detector needs hundreds of bytes, a source file has a comment or two. So an encoding is chosen if its
bytes outside ASCII become words: of the letters of one language, or of the usual characters of a script, with some of
the frequent ones. Words with ASCII letters inside are Latin: `Gr\xf6\xdfe` is never Chinese.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

_MIN_SHARE: Final = 0.9
"""Of the characters outside ASCII: the rest are names and typing errors."""
_MIN_LETTERS: Final = 3
"""Of a script of letters other than Latin. Any two are words in some encoding."""

_GERMAN: Final = "äöüß"
_WESTERN: Final = (
    _GERMAN,
    "àâæçéèêëîïôœùûü",
    "áéíñóúü",
    "àáâãçéêíóôõúü",
    "àèéìòù",
    "àçèéíïòóúü",
    "áäåæéöøü",
    "áçéèëïíóöü",
)
"""German, French, Spanish, Portuguese, Italian, Catalan, Scandinavian, Dutch."""
_CENTRAL: Final = ("ąćęłńóśźż", "áčďéěíňóřšťúůýž", "áäčďéíĺľňóôŕšťúýž", "áéíóöőúüű", "ćčđšž", "âăîşţ")
"""Polish, Czech, Slovak, Hungarian, Croatian, Romanian."""

_LATIN: Final = (
    ("cp1252", _WESTERN),
    ("cp1250", _CENTRAL),
    ("iso8859-2", _CENTRAL),
    ("cp1254", ("âçğıîöşüû",)),  # Turkish
    ("cp850", (_GERMAN,)),
    ("cp1252", ("".join(map(chr, {*range(0xDF, 0x100)} - {0xF7})) + "œšž",)),  # Icelandic, and names of many countries
)
"""Encodings with alphabets, in the order in which they are tried."""

_RUSSIAN: Final = ("абвгдеёжзийклмнопрстуфхцчшщъыьэюяґєії", "оеаинтсрвлі")
_HEBREW: Final = ("אבגדהוזחטיךכלםמןנסעףפץצקרשת", "יולהמרתאשנ")
_GREEK: Final = ("αάβγδεέζηήθιίϊΐκλμνξοόπρσςτυύϋΰφχψωώ", "αοιετσνηυρόίά")
_OTHER_LETTERS: Final = (
    *((encoding, *_RUSSIAN) for encoding in ("cp1251", "koi8-r", "cp866")),
    ("cp1253", *_GREEK),
    ("cp1255", *_HEBREW),
)
"""Encoding, letters (of Russian and Ukrainian), the most frequent ones."""
_FREQUENT_LETTERS: Final = 0.4
"""Their share: 0.65 in real text, 0.2 to 0.3 if capitals and small letters are exchanged (cp1251 and koi8-r)."""
_FREQUENT_CHARACTERS: Final = 0.1

_CHINESE: Final = (
    "的一是不了在有人用这中大为上个数据文件名以到时要就出会可也你对生能而子那得于着下自之年过发后作里成多所方法变量值返回参函类型"
    "表示设置配信息输入输出字符串错误默认添加删除修改新建加读写取是否果如定义处理接口使意测试码说明初始化本日行目录路径網这這個為"
    "數據來會時對後發過裡變參類設輸錯誤預刪寫義處碼說檔案傳連線資料庫使用者密稱註解"
)
_KANA: Final = "".join(map(chr, [*range(0x3041, 0x3094), *range(0x30A1, 0x30F7)]))
_JAPANESE: Final = _KANA + "初期化作者定値関数設文字列名前時間使用変更注意年月日本人出入力処理"
_KOREAN: Final = "이다는을를의에가은로고한하지기사자나아도리어시해서정인수그대있것들와으스트일성동오보제파처설명변용"

_SYMBOL_ROWS: Final = rb"[\xa1\xa3][\xa1-\xfe]"
_TWO_BYTES: Final = (
    ("cp932", rb"\x81[\x40-\xac]|\x82[\x4f-\xf1]|\x83[\x40-\x96]|[\x88-\x97][\x40-\xfc]|\x98[\x40-\x72]", _JAPANESE),
    ("euc_jp", rb"\xa4[\xa1-\xf3]|\xa5[\xa1-\xf6]|[\xb0-\xcf][\xa1-\xfe]|" + _SYMBOL_ROWS, _JAPANESE),
    ("euc_kr", rb"[\xb0-\xc8][\xa1-\xfe]|" + _SYMBOL_ROWS, _KOREAN),
    ("gb18030", rb"[\xb0-\xd7][\xa1-\xfe]|" + _SYMBOL_ROWS, _CHINESE),
    ("big5", rb"[\xa4-\xc5][\x40-\x7e\xa1-\xfe]|\xc6[\x40-\x7e]|\xa1[\x40-\x7e\xa1-\xfe]", _CHINESE),
)
"""Encoding, the rows of its usual characters (first level of the standard, letters, punctuation), the frequent ones."""

_ASCII: Final = re.compile("[\0-\x7f]+")
_WORD: Final = re.compile(r"[^\W\d_]+")
_SYMBOL: Final = re.compile(
    r"(?<!\w)[«“„‚‘‹¿¡](?=\w)|(?<=\w)[»”“‘›…™®](?!\w)|’|\b[^\W\d_]{1,2}[²³](?!\w)|[°µ](?=[^\W\d_]{1,2}\b)"
    r"|(?<![^\W\d_])[\xa0§©®°±ª²³µ¹º«»¼½¾¿¡£¥¢×÷·†•…‰–—€“”„‚‘‹›™№](?![^\W\d_])"
)
"""Symbols where a text has them (m², 20 µs, “quoted”, l’été), not where other encodings have letters."""


def likely_encodings(sample: bytes) -> Iterator[str]:
    """The encodings in which `sample`, whole lines with bytes outside ASCII, is made of words; the likeliest first."""
    for encoding, alphabets in _LATIN:
        if _is_latin(sample, encoding, alphabets):
            yield encoding
    others = [(_letters_share(sample, *row), row[0]) for row in _OTHER_LETTERS]
    others += [(_characters_share(sample, *row), row[0]) for row in _TWO_BYTES]
    yield from (encoding for share, encoding in sorted(others, reverse=True) if share >= 0)


def mixes_scripts(text: str) -> bool:
    """Whether words have ASCII letters and those of a different script in them: a wrong guess."""
    words = [word for word in _WORD.findall(text) if not word.isascii()]
    mixed = sum(re.search("[A-Za-z]", word) is not None and max(word) > "\u024f" for word in words)
    return bool(mixed * 20 > len(words))


def _words(sample: bytes, encoding: str) -> tuple[str, list[str], int]:
    """The characters outside ASCII, the words that have some, and the number of symbols."""
    try:
        text = sample.decode(encoding)
    except UnicodeDecodeError:
        return "", [], 0
    words = [word for word in _WORD.findall(text) if not word.isascii()]
    return _ASCII.sub("", text), words, len(_SYMBOL.findall(text))


def _is_latin(sample: bytes, encoding: str, alphabets: Sequence[str]) -> bool:
    """Whether nearly all characters outside ASCII are in words of one of these languages, or are symbols."""
    outside, words, symbols = _words(sample, encoding)
    wanted = _MIN_SHARE * len(outside) - symbols
    pairs = [(word, _ASCII.sub("", word)) for word in words]
    # "été", "Ölçü", "à".
    mixed = [own for word, own in pairs if len(own) * 3 <= len(word) * 2 or len(own) < len(word) <= 5 or len(word) == 1]
    for alphabet in alphabets if outside else ():
        letters = {*alphabet, *alphabet.upper()}
        # The four letters of German in a row are words in no other script.
        some = [own for _, own in pairs] if alphabet == _GERMAN else mixed
        if sum(map(len, some)) >= wanted and sum(len(own) for own in some if letters.issuperset(own)) >= wanted:
            return True
    return False


def _letters_share(sample: bytes, encoding: str, alphabet: str, frequent: str) -> float:
    """The share of frequent letters in words that are wholly of this alphabet; -1 if it is another encoding."""
    outside, words, symbols = _words(sample, encoding)
    letters = {*alphabet, *alphabet.upper()}
    fitting = "".join(
        word.lower() for word in words if letters.issuperset(word) and (word.isupper() or word[1:] == word[1:].lower())
    )
    if len(fitting) + symbols < _MIN_SHARE * len(outside) or len(fitting) < _MIN_LETTERS:
        return -1.0
    share = sum(map(fitting.count, frequent)) / len(fitting)
    share -= 0.2 * all(word.isupper() for word in words)  # Hebrew in koi8-r
    return share if share >= _FREQUENT_LETTERS else -1.0


def _characters_share(sample: bytes, encoding: str, usual: bytes, frequent: str) -> float:
    """The share of frequent characters; -1 if it is another encoding."""
    found = [match[1] for match in re.finditer(rb"(?s)(" + usual + rb")|[\x80-\xff].?", sample)]
    fitting = b"".join(character for character in found if character is not None)
    if len(fitting) < _MIN_SHARE * 2 * len(found) or len(fitting) < 4:
        return -1.0
    text = fitting.decode(encoding, "replace")
    share = sum(map(set(frequent).__contains__, text)) / len(text)
    # No other encoding has usual characters that begin with 0x81 to 0x97.
    return share if share >= _FREQUENT_CHARACTERS or encoding == "cp932" else -1.0
