from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from reposync.embedding import word_table
from reposync.embedding.port import Matrix
from reposync.embedding.settings import STATIC_DIMENSION, STATIC_WINDOW
from reposync.embedding.word_table import FILES, WordTable, load_table, read_table
from reposync.errors import EmbeddingError

FOLDER = Path(word_table.__file__).parent / "static"


@pytest.fixture(scope="module")
def table() -> WordTable:
    return load_table()


def similarity(question: Matrix | None, matrix: Matrix) -> float:
    assert question is not None
    return float((question @ matrix.T).max())


def test_a_sentence_is_nearer_to_the_code_that_does_it_than_to_other_code(table: WordTable) -> None:
    code = {
        "compress": "def compress_file(path):\n    with gzip.open(path) as archive:\n        archive.write(data)\n",
        "login": "def check_password(user, password):\n    return bcrypt.verify(password, user.password_hash)\n",
        "sort": "def bubble(numbers):\n    for i in numbers:\n        swap(numbers, i, smallest(numbers))\n",
    }
    for question, expected in {
        "make a zip archive smaller": "compress",
        "authenticate the account of a person who logs in": "login",
        "put the items of a list in order": "sort",
    }.items():
        asked = table.question(question)
        ranks = sorted(code, key=lambda name: -similarity(asked, table.matrix(code[name], STATIC_WINDOW)))
        assert ranks[0] == expected, question


def test_each_window_with_a_known_word_has_a_unit_vector(table: WordTable) -> None:
    text = "\n".join(f"def read_file_{n}(path): return open(path).read()" for n in range(200))
    matrix = table.matrix(text, STATIC_WINDOW)
    assert matrix.dtype == np.float32 and matrix.shape[1] == STATIC_DIMENSION
    assert len(text) / STATIC_WINDOW <= len(matrix) <= 2 * len(text) / STATIC_WINDOW
    np.testing.assert_allclose(np.linalg.norm(matrix, axis=1), 1, atol=1e-5)


def test_a_window_has_the_same_vector_whatever_it_stands_beside(table: WordTable) -> None:
    window = "def open_socket(host, port):\n    return socket.connect((host, port))\n"
    alone = table.matrix(window, len(window))
    beside = table.matrix(window + window.replace("socket", "file"), len(window))
    assert len(beside) == 2
    assert alone[0].tobytes() == beside[0].tobytes()


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n\t",
        "1234 5678 0x90",
        "2718281828" * 100_000,
        "{}();[]",
        "q" * 1_000_000,
        "Readfile" * 125_000,
        "貓" * 10_000,
        "ฟังก์ชัน" * 10_000,
        "دالة" * 10_000,
        "\x00\x01",
        "कखग" * 1_000,
        "zzqx_qqzx",
    ],
    ids=[
        *("empty", "blank", "digits", "long-digits", "signs", "one-word", "one-name", "han", "thai", "arabic"),
        *("control", "indic", "unknown"),
    ],
)
def test_a_text_without_a_known_word_has_one_unit_vector_and_no_question(table: WordTable, text: str) -> None:
    matrix = table.matrix(text, STATIC_WINDOW)
    assert matrix.shape == (1, STATIC_DIMENSION)
    np.testing.assert_allclose(np.linalg.norm(matrix, axis=1), 1, atol=1e-5)
    assert table.question(text) is None
    # Not what a question finds first.
    asked = table.question("read the file")
    assert similarity(asked, matrix) < similarity(asked, table.matrix("def read_file(path): ...", STATIC_WINDOW))


def test_a_megabyte_of_one_known_word_is_as_many_windows_with_the_vector_of_the_word(table: WordTable) -> None:
    text = "socket " * 150_000
    matrix = table.matrix(text, STATIC_WINDOW)
    assert len(text) / STATIC_WINDOW <= len(matrix) <= 2 * len(text) / STATIC_WINDOW
    assert len(np.unique(matrix.round(5), axis=0)) == 1
    asked = table.question(text)
    assert asked is not None and asked.shape == (1, STATIC_DIMENSION)
    assert similarity(asked, matrix) > 0.9999


def test_stop_words_and_digits_in_a_question_change_nothing(table: WordTable) -> None:
    plain, wordy = table.question("lock file"), table.question("the lock of a 42 file")
    assert plain is not None and wordy is not None
    np.testing.assert_allclose(plain, wordy, atol=1e-6)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["cut", "changed", "missing", "of a different table"])
def test_a_table_that_is_not_the_one_of_this_program_is_refused(name: str, damage: str, tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "static")
    file = tmp_path / "static" / name
    content = file.read_bytes()
    file.write_bytes({"cut": content[:-9], "changed": content[:-2] + b"zz"}.get(damage, content[::-1]))
    if damage == "missing":
        file.unlink()
    with pytest.raises(EmbeddingError, match="table of the static model") as refused:
        read_table(tmp_path / "static")
    assert refused.value.remedy == "Install reposync again."


def test_words_are_stems_sorted_and_as_many_as_rows() -> None:
    vocabulary = (FOLDER / "words.txt").read_text().splitlines()
    vectors, scales = (np.load(FOLDER / name, allow_pickle=False) for name in FILES[:2])
    assert vocabulary == sorted(set(vocabulary))
    assert (vectors.dtype, vectors.shape) == (np.int8, (len(vocabulary), STATIC_DIMENSION))
    assert (scales.dtype, scales.shape) == (np.float32, (len(vocabulary),))
    assert np.isfinite(scales).all() and (scales > 0).all()
