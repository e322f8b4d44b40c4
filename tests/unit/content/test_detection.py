from __future__ import annotations

import json
import random
import string

import pytest

from reposync.content.detection import SMALLEST_DATA_CHARS, data_reason, share_of_words
from reposync.content.documents import make_document
from reposync.content.model import Skip, Skipped

RANDOM = random.Random(1)
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "near", "a", "river"]


def reason(path: str, text: str, *, keep_generated: bool = False) -> Skip | None:
    content = text.encode()
    made = make_document(path.encode(), content, len(content), keep_generated=keep_generated)
    return made.reason if isinstance(made, Skipped) else None


def numbers(chars: int) -> str:
    lines = (",".join(f"{RANDOM.random():.6f}" for _ in range(12)) + "\n" for _ in range(chars // 100))
    return "".join(lines)


def coordinates(chars: int) -> str:
    return " ".join(f"{RANDOM.random() * 100:.2f}" for _ in range(chars // 6))


def base64_lines(chars: int, width: int = 64) -> str:
    letters = string.ascii_letters + string.digits + "+/"
    return "".join("".join(RANDOM.choices(letters, k=width)) + "\n" for _ in range(chars // width))


def sentences(chars: int, end: str = "\n") -> str:
    return "".join(" ".join(RANDOM.choices(WORDS, k=12)) + end for _ in range(chars // 55))


PICTURE = f'<svg xmlns="http://www.w3.org/2000/svg"><path style="fill:none" d="M {coordinates(30_000)}"/></svg>'


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("data/points.csv", numbers(30_000)),
        ("data/points.dat", numbers(30_000)),
        ("fixtures/answer.json", json.dumps([RANDOM.random() for _ in range(2000)], indent=1)),
        ("certificates.pem", "-----BEGIN CERTIFICATE-----\n" + base64_lines(30_000) + "-----END CERTIFICATE-----\n"),
        ("mail.txt", "Subject: a picture\n\n" + base64_lines(30_000, 76)),
        ("logo.svg", PICTURE),
        ("recorded.json", json.dumps([{"id": n, "at": [n / 3, n / 7]} for n in range(2000)])),
        ("page.html", "<html>\n" + "<td>1</td>" * 3000 + "\n</html>\n"),
        ("table.py", "TABLE = [\n" + ",".join(str(n) for n in range(10_000)) + "\n]\n"),
    ],
)
def test_data_is_left_out_as_data(path: str, text: str) -> None:
    assert reason(path, text) is Skip.DATA
    assert reason(path, text, keep_generated=True) is None


@pytest.mark.parametrize("path", ["a.csv", "a.json", "a.js"])
def test_a_text_below_the_smallest_size_is_never_data(path: str) -> None:
    text = "1.5," * SMALLEST_DATA_CHARS

    assert reason(path, text[: SMALLEST_DATA_CHARS - 1], keep_generated=path == "a.js") is None
    assert data_reason(text[:SMALLEST_DATA_CHARS], "csv") is not None


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("crc.c", "static const unsigned table[] = {\n" + "    0x4cd3, 0x1e0a, 0x77f1,\n" * 1000 + "};\n"),
        ("test_solver.py", "EXPECTED = [\n" + numbers(30_000) + "]\n"),
        ("schema.sql", "CREATE TABLE t (id int NOT NULL, name varchar(80), at timestamp);\n" * 300),
        ("ids.sql", "INSERT INTO t VALUES ('49666734-d5be-4d2b-8281-a9f700792a9e');\n" * 300),
        ("LICENSE", sentences(30_000)),
        ("LICENSE.txt", sentences(30_000, " ")),
        ("values.yaml", "".join(f"service{n}:\n  port: {8000 + n}\n  host: 10.0.0.{n % 250}\n" for n in range(500))),
        ("config.json", json.dumps({f"option {n}": {"enabled": True, "limit": n} for n in range(500)}, indent=2)),
        ("people.csv", "".join(f"{RANDOM.choice(WORDS)},{RANDOM.choice(WORDS)},{n}\n" for n in range(2000))),
        ("README.md", "# Title\n\n" + sentences(2000) + f"![](data:image/png;base64,{base64_lines(30_000, 30_000)})\n"),
        ("wal.md", "│ ├───────────────┼──────────┤ │ len <4b> │\n" * 400),
        ("de.json", json.dumps({f"save_changes_{n}": f"Änderungen speichern für {n}" for n in range(1000)})),
        ("en.json", json.dumps({f"button.save.{n}": "Save changes" for n in range(1000)})),
        ("zh.json", json.dumps({f"key{n}": "保存更改并继续编辑" for n in range(1000)}, ensure_ascii=False)),
        ("messages_zh.properties", "".join(f"a{n}=\\u4fdd\\u5b58\\u66f4\\u6539\n" for n in range(1000))),
        ("strings.xml", "".join(f"<s n='{n}'>&#20445;&#x5b58;&#26356;</s>\n" for n in range(1000))),
        ("zh.txt", "这是一个没有空格的句子，用于说明这个函数的作用。" * 800),
        ("ja.txt", "これはコメントです。関数の説明。\n" * 1000),
        ("ru.txt", "Это комментарий к функции, которая считает сумму. " * 400),
        ("hi.txt", "यह फ़ाइल हिंदी में लिखी गई है और इसमें केवल शब्द हैं। " * 400),
        ("old.c", "int add(int left, int right) { return left + right; }\r" * 300),
        ("page.tsx", "import React from 'react'\n" * 300 + f"const logo = <path d='{coordinates(10_000)}'/>\n"),
        ("app.asm", "    mov eax, [ebp+8]\n    add eax, 4\n    jne loop\n" * 400),
    ],
)  # fmt: skip
def test_code_and_prose_are_no_data_whatever_they_look_like(path: str, text: str) -> None:
    assert len(text) >= SMALLEST_DATA_CHARS
    assert reason(path, text) is None


def test_a_person_reads_why_a_file_is_data_and_nothing_of_its_content() -> None:
    assert data_reason(numbers(30_000), "csv") == Skipped(Skip.DATA, "data: words are 0% of it")
    assert data_reason("name\n" + "{};" * 9000, "javascript") == Skipped(Skip.DATA, "data: one line is 100% of it")


def test_the_look_at_a_text_does_not_grow_with_it() -> None:
    # The windows are spread evenly: the second half is seen, however long the text is.
    half = sentences(500_000)
    assert share_of_words(half + numbers(len(half))) == pytest.approx(0.5, abs=0.15)
