from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.content.decoding import decode, is_lfs_pointer
from reposync.content.model import Skip, Skipped

POINTER = b"""version https://git-lfs.github.com/spec/v1
oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
size 12345
"""


def reason(content: bytes) -> Skip | None:
    decoded = decode(content)
    return decoded.reason if isinstance(decoded, Skipped) else None


@given(st.text(alphabet=st.characters(exclude_characters="\0\ufeff", exclude_categories=["Cs", "Cc"]), min_size=1))
def test_utf8_text_comes_out_as_it_went_in(text: str) -> None:
    expected = Skip.EMPTY if text.isspace() else None
    assert reason(text.encode()) is expected
    if expected is None:
        assert decode(text.encode()) == text


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_a_byte_order_mark_names_the_encoding_and_is_removed(encoding: str) -> None:
    assert decode("\ufeffgrüße\r\n漢字".encode(encoding)) == "grüße\r\n漢字"


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ('# José García, Müller & Søn\nname = "naïve café"\n', "latin-1"),
        ("/* © 2004 “Quoted” – Müller */\nint x;\n", "cp1252"),
        ("// Это комментарий к функции, которая считает сумму\nint main() { return 0; }\n", "cp1251"),
        ("// Это комментарий к функции, которая считает сумму\nint main() { return 0; }\n", "koi8-r"),
        ("// これはコメントです。関数の説明。\nint main() { return 0; }\n", "shift_jis"),
        ("// これはコメントです。関数の説明。\nint main() { return 0; }\n", "euc_jp"),
        ("// 이것은 함수의 설명입니다. 한국어 주석\nint main() { return 0; }\n", "euc_kr"),
        ("# 这是一个注释，用于说明函数的作用\ndef f():\n    pass\n", "gbk"),
        ("// 這是一個註解，用來說明函式的功能\nint main() { return 0; }\n", "big5"),
        ("// Αυτό είναι ένα σχόλιο για τη συνάρτηση\nint x;\n", "cp1253"),
        ("# -*- coding: koi8-r -*-\n# Да\n", "koi8-r"),
        ('<?xml version="1.0" encoding="iso-8859-2"?>\n<a>Łódź</a>\n', "iso-8859-2"),
        ('<meta charset="shift_jis">\n<p>はい</p>\n', "shift_jis"),
        ("# שלום עולם זה קובץ\n", "cp1255"),
        # Longer than the sample that a detector gets.
        ("int x;\n" * 2000 + "// 教本チュートリアルへようこそ、すべてのコマンドを説明する\n" * 400, "shift_jis"),
    ],
)
def test_text_in_older_encodings_is_read(text: str, encoding: str) -> None:
    assert decode(text.encode(encoding)) == text


_GERMAN = [
    "# Größe und Breite\nGröße = 1\nprint('größer')\n",
    "// Grüße aus München\nint main() { return 0; }\n",
    "/* Maßgröße: Fläche in m², größer als die vorige Größe */\nint a;\n",
    "<h1>Größenänderung</h1>\n<p>Viele Grüße, Ihr Team aus Köln. Weiß, heiß, süß.</p>\n",
    "-- Prüft Maße: Länge × Breite, größer 5 m²\nSELECT * FROM maße WHERE größe > 5;\n",
    "UMLAUT = re.compile('[a-zäöüßÄÖÜ]')  # „Größe“ – 20 °C, 5 €\n",
]
_RUSSIAN = ["# Проверка\n", "// строка\n", "/* ВНИМАНИЕ: не менять! */\n", "-- Имя пользователя и пароль\n"]
_RUSSIAN += ["# Если файл не найден, вернуть ошибку\n", "// Да, так надо\n", "/* TODO: убрать */\n"]
_JAPANESE = ["# 設定ファイル\n", "// これはコメントです\nint x;\n", "/* データベースに接続する */\n", "// 初期化\n"]
_JAPANESE += ["# ファイルが見つからない場合はエラー\n", "// 関数の説明。引数は整数\n"]
_SHORT = {
    "cp1252": [*_GERMAN[:3], "# Über\n", "// später löschen\n", "/* Äußere Schleife */\n"],
    "latin-1": [
        "# Vérifie que la clé a été créée\n",
        "# L'été dernier: à côté\n",
        "// ¿Qué función usar aquí? Año nuevo\n",
        "/* Não é possível; função inválida, informações */\n",
        "# Håndterer fejl på serveren; søg først\n",
        "// Il valore è già più grande: perché?\n",
    ],
    "iso-8859-2": [
        "// Połączenie z bazą danych\n",
        "/* Użytkownik i hasło */\n",
        "# Sprawdź, czy użytkownik istnieje\n",
        "# Připojení k databázi\n",
        "// Ověří, že soubor existuje\n",
        "/* Příliš žluťoučký kůň */\n",
    ],
    "cp1251": _RUSSIAN,
    "koi8-r": _RUSSIAN,
    "koi8-u": ["# Забагато аргументів\n", "/* визначити нову агрегатну функцію\n"],
    "cp1253": ["# Ρυθμίσεις\n", "/* Όνομα χρήστη και κωδικός */\n", "// Σύνδεση στη βάση\n"],
    # Also in visual order, as older programs wrote it.
    "cp1255": ["# הקובץ לא נמצא במערכת\n", "-- ...makefile יצבק ןכדעמ\n"],
    "cp1256": ["# لا يمكن فتح الملف\n", "// اسم المستخدم وكلمة المرور\n"],
    "cp874": ["# ไม่พบแฟ้ม\n", "// ชื่อผู้ใช้และรหัสผ่าน\n"],
    "shift_jis": _JAPANESE,
    "euc_jp": _JAPANESE,
    "gb18030": [
        "# 配置文件\n",
        "// 这是一个注释\nint x;\n",
        "/* 连接到数据库 */\n",
        "-- 用户名和密码\n",
        "# 如果文件不存在，返回错误\n",
        "# 测试API的接口\n",
        "# 屏幕宽度和高度\n",
    ],
    "big5": ["# 螢幕寬度和高度\n", "// 傳回清單的長度\n", "/* 以後再改 */\n", "# 刪除暫存檔案\n"],
    "euc_kr": [
        'log("완료");\n',
        "# 설정 파일\n",
        "// 이것은 주석입니다\nint x;\n",
        "/* 데이터베이스에 연결 */\n",
        "-- 사용자 이름과 비밀번호\n",
        "# 파일이 없으면 오류를 반환한다\n",
        "# 테스트\n",
    ],
}


@pytest.mark.parametrize("text", _GERMAN)
def test_german_words_keep_their_letters(text: str) -> None:
    assert decode(text.encode("cp1252")) == text


@pytest.mark.parametrize("encoding", _SHORT)
def test_a_comment_of_a_few_words_is_read_in_its_encoding(encoding: str) -> None:
    assert [decode(text.encode(encoding)) for text in _SHORT[encoding]] == _SHORT[encoding]


_HIGH_LETTERS = "".join(map(chr, {*range(0xC0, 0x100)} - {0xD7, 0xF7}))
# The second of two is none of ŠŒŽšœžŸ: the pair could be a letter in UTF-8.
_western_words = st.from_regex(f"[A-Za-z]{{1,4}}[ŠŒŽšœžŸ{_HIGH_LETTERS}][{_HIGH_LETTERS}]?[a-z]{{0,4}}", fullmatch=True)


@given(st.lists(_western_words, min_size=1, max_size=300))
def test_words_with_letters_of_cp1252_never_become_a_different_script(words: list[str]) -> None:
    text = decode(" ".join(words).encode("cp1252"))
    if not isinstance(text, Skipped):
        assert {unicodedata.name(char).split()[0] for char in text if char.isalpha()} == {"LATIN"}


@given(st.lists(st.sampled_from(" ".join(_GERMAN[:5]).split()), min_size=1, max_size=300))
def test_german_words_in_any_order_are_read_as_they_are(words: list[str]) -> None:
    text = " ".join(words)
    assert decode(text.encode("cp1252")) == text


_WORDS_OF_SCRIPTS = {
    "CYRILLIC": ("cp1251", "убрать Готово Юникод шрифты документацию Удалить временные файлы Возвращает длину списка"),
    "GREEK": ("cp1253", "αρχείο ρυθμίσεις χρήστης κωδικός σύνδεση βάση όνομα διαγραφή επιστρέφει μέγεθος λίστας"),
    "HEBREW": ("cp1255", "קובץ משתמש סיסמה חיבור מסד שגיאה גודל רשימה מחיקת קבצים זמניים הגדרות"),
}


@pytest.mark.parametrize("script", _WORDS_OF_SCRIPTS)
@given(st.data())
def test_words_of_one_script_never_become_words_of_another(script: str, data: st.DataObject) -> None:
    encoding, words = _WORDS_OF_SCRIPTS[script]
    text = " ".join(data.draw(st.lists(st.sampled_from(words.split()), min_size=1, max_size=20)))
    decoded = decode(text.encode(encoding))
    if not isinstance(decoded, Skipped):
        assert {unicodedata.name(char).split()[0] for char in decoded if char.isalpha()} == {script}


def test_a_few_bytes_that_are_no_words_are_not_guessed() -> None:
    assert reason("return 'ﺉﻑ廲罭'\n".encode("gb18030")) is Skip.UNDECODABLE


@pytest.mark.parametrize("declared", ["utf_7", "rot13", "unicode_escape", "idna", "hex", "no-such-thing", "utf-16"])
def test_a_file_cannot_choose_an_encoding_that_no_file_has(declared: str) -> None:
    content = f"# -*- coding: {declared} -*-\n# José García\n".encode("latin-1")
    assert decode(content) == content.decode("latin-1")


def test_a_few_broken_bytes_do_not_spoil_utf8() -> None:
    content = "// Это комментарий\n".encode() + b"// broken: \xff\n"
    assert decode(content) == "// Это комментарий\n// broken: \ufffd\n"


@pytest.mark.parametrize(
    "content",
    [
        b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00>\x00",
        b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 10,
        b"abc\0def",
        bytes(range(1, 32)) * 50,
        b"\xff\xfe" + b"\x00\xd8" * 9,
    ],
)
def test_binary_files_are_detected_by_their_content(content: bytes) -> None:
    assert reason(content) is Skip.BINARY


def test_a_nul_far_down_in_a_text_is_replaced_since_no_database_stores_it() -> None:
    assert decode(b"line\n" * 2000 + b"a\0b\n") == "line\n" * 2000 + "a\ufffdb\n"


def test_bytes_that_are_no_text_in_any_encoding_are_refused() -> None:
    assert reason(bytes(range(0x80, 0x100)) * 100) is Skip.UNDECODABLE


@pytest.mark.parametrize("content", [b"", b" \n\t\r\n", b"\xef\xbb\xbf", b"\xff\xfe", "\u3000\n".encode()])
def test_files_without_text_are_empty(content: bytes) -> None:
    assert reason(content) is Skip.EMPTY


def test_lfs_pointers_are_distinguished_from_text_about_them() -> None:
    assert reason(POINTER) is Skip.LFS_POINTER
    assert is_lfs_pointer(POINTER.replace(b"\n", b"\r\n"))
    assert is_lfs_pointer(POINTER.replace(b"git-lfs.github.com", b"hawser.github.com"))
    assert reason(b"# About LFS\n" + POINTER) is None
    assert reason(POINTER + b"x" * 1024) is None  # the specification: a pointer is under 1024 bytes
    assert reason(b"version https://git-lfs.github.com/spec/v1\nis the first line of a pointer\n") is None
