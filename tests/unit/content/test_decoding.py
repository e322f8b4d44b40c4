from __future__ import annotations

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
        # Longer than the sample that a detector gets.
        ("int x;\n" * 2000 + "// 教本チュートリアルへようこそ、すべてのコマンドを説明する\n" * 400, "shift_jis"),
    ],
)
def test_text_in_older_encodings_is_read(text: str, encoding: str) -> None:
    assert decode(text.encode(encoding)) == text


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
