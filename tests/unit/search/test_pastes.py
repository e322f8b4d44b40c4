"""What is read from pasted tracebacks, compiler outputs and issues."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.search.pastes import MAX_PASTE_CHARS, Paste, read_paste
from reposync.search.query import MAX_QUERY_CHARS

PYTHON = """\
Traceback (most recent call last):
  File "/usr/src/app/src/pool.py", line 12, in handle
    connection = acquire(1)
  File "/usr/src/app/src/store.py", line 40, in acquire
    raise PoolClosed
app.errors.PoolClosedError: the pool is closed

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/usr/src/app/src/api.py", line 3, in get
    return pool.handle()
RuntimeError: no connection is left
"""
PYTEST = """\
    def test_closes():
>       assert pool.size == 1
E       AssertionError: assert 2 == 1

tests/unit/test_pool.py:12: AssertionError
FAILED tests/unit/test_pool.py::TestPool::test_closes - AssertionError: assert 2 == 1
"""
JAVA = """\
Exception in thread "main" java.lang.IllegalStateException: pool is closed
\tat com.shop.billing.Pool$Worker.run(Pool.java:42)
\tat java.base/java.lang.Thread.run(Thread.java:833)
Caused by: java.sql.SQLException: no connection
\tat com.shop.billing.Db.open(Db.kt:7)
\t... 2 more
"""
JAVASCRIPT = """\
TypeError: Cannot read properties of undefined (reading 'id')
    at Pool.acquire (/app/src/pool.ts:10:5)
    at async handler (webpack:///./src/api/handler.tsx:3:7)
    at /app/node_modules/express/lib/router.js:47:12
"""
TSC = """\
src/api/user.ts(12,5): error TS2345: Argument of type 'string' is not assignable to parameter of type 'number'.
src/b.ts:3:1 - error TS1005: ';' expected.
"""
GO = """\
panic: runtime error: index out of range [3] with length 3

goroutine 1 [running]:
main.(*Server).handle(0xc000010000)
\t/home/u/proj/cmd/server/main.go:25 +0x1d
net/http.HandlerFunc.ServeHTTP(...)
\t/usr/local/go/src/net/http/server.go:2122
"""
RUST = """\
thread 'main' panicked at src/store/index.rs:88:14:
called `Option::unwrap()` on a `None` value
stack backtrace:
   1: app::store::Index::load
             at ./src/store/index.rs:88:14
"""
RUSTC = """\
error[E0382]: borrow of moved value: `config`
  --> src/main.rs:14:20
   |
14 |     println!("{}", config);
"""
GCC = """\
src/net/conn.c: In function 'conn_open':
src/net/conn.c:120:15: error: 'struct conn' has no member named 'fd'
make: *** [Makefile:12: conn.o] Error 1
"""
GDB = """\
Program received signal SIGSEGV, Segmentation fault.
#0  0x0000555555555131 in shop::Pool::run (this=0x0, n=1) at src/pool.cpp:12
#1  main () at src/main.cpp:3
"""
CSHARP = """\
Unhandled exception. System.NullReferenceException: Object reference not set to an instance of an object.
   at Shop.Billing.Pool.Run(Int32 n) in C:\\src\\Shop\\Billing\\Pool.cs:line 42
   at Shop.Program.Main(String[] args) in C:\\src\\Shop\\Program.cs:line 9
"""
RUBY = """\
/app/lib/pool.rb:12:in 'Pool#checkout': connection refused (PoolError)
\tfrom /app/bin/run.rb:3:in `block in main'
"""
PHP = """\
PHP Fatal error:  Uncaught InvalidArgumentException: bad id in /var/www/src/Repo/UserRepo.php:33
Stack trace:
#0 /var/www/src/Http/Kernel.php(12): App\\Repo\\UserRepo->find()
#1 {main}
  thrown in /var/www/src/Repo/UserRepo.php on line 33
"""
ISSUE = """\
## Search pages lose the filter of the repository

When I use `read_filters` with two values, SearchText.repositories has one only. It happens in
src/search/query.py:80 since the last release.
"""


def read(text: str) -> Paste:
    paste = read_paste(text)
    assert paste is not None
    return paste


@pytest.mark.parametrize(
    ("text", "frames", "names", "sentence"),
    [
        (
            PYTHON,
            "/usr/src/app/src/store.py:40 /usr/src/app/src/pool.py:12 /usr/src/app/src/api.py:3",
            "app.errors.PoolClosedError handle acquire",
            "RuntimeError: no connection is left",
        ),
        (
            PYTEST,
            "tests/unit/test_pool.py:12 tests/unit/test_pool.py",
            "AssertionError",
            "AssertionError: assert 2 == 1",
        ),
        (
            JAVA,
            "com/shop/billing/Pool.java:42 java/lang/Thread.java:833 com/shop/billing/Db.kt:7",
            "java.lang.IllegalStateException java.sql.SQLException Pool.run Db.open",
            "java.sql.SQLException: no connection",
        ),
        (
            JAVASCRIPT,
            "/app/src/pool.ts:10 /src/api/handler.tsx:3 /app/node_modules/express/lib/router.js:47",
            "TypeError Pool.acquire handler",
            "TypeError: Cannot read properties of undefined (reading 'id')",
        ),
        (
            TSC,
            "src/api/user.ts:12 src/b.ts:3",
            "",
            "Argument of type 'string' is not assignable to parameter of type 'number'.",
        ),
        (
            GO,
            "/home/u/proj/cmd/server/main.go:25 /usr/local/go/src/net/http/server.go:2122",
            "ServeHTTP",
            "runtime error: index out of range [3] with length 3",
        ),
        (RUST, "src/store/index.rs:88", "app::store::Index::load", "called `Option::unwrap()` on a `None` value"),
        (RUSTC, "src/main.rs:14", "config", "borrow of moved value: `config`"),
        (GCC, "src/net/conn.c:120", "conn_open", "'struct conn' has no member named 'fd'"),
        (GDB, "src/pool.cpp:12 src/main.cpp:3", "shop::Pool::run", "Program received signal SIGSEGV"),
        (
            CSHARP,
            "src/Shop/Billing/Pool.cs:42 src/Shop/Program.cs:9",
            "System.NullReferenceException Shop.Billing.Pool.Run",
            "System.NullReferenceException: Object reference not set",
        ),
        (RUBY, "/app/lib/pool.rb:12 /app/bin/run.rb:3", "Pool#checkout", "connection refused (PoolError)"),
        (
            PHP,
            "/var/www/src/Repo/UserRepo.php:33 /var/www/src/Http/Kernel.php:12",
            "App\\Repo\\UserRepo->find",
            "InvalidArgumentException: bad id",
        ),
        (ISSUE, "src/search/query.py:80", "read_filters SearchText.repositories", "Search pages lose the filter"),
    ],
)
def test_a_paste_names_its_frames_the_innermost_first_its_names_and_its_sentence(
    text: str, frames: str, names: str, sentence: str
) -> None:
    paste = read(text)
    assert [str(each) for each in paste.frames] == frames.split()
    said = " ".join(paste.names)
    assert all(name in said for name in names.split()), paste.names
    assert paste.sentence.startswith(sentence), paste.sentence


def test_a_form_that_lost_its_line_breaks_is_read_all_the_same() -> None:
    joined = 'Traceback (most recent call last):   File "/app/src/pool.py", line 12, in handle RuntimeError: closed'
    assert [str(each) for each in read(joined).frames] == ["/app/src/pool.py:12"]


@pytest.mark.parametrize(
    "text",
    [
        "where is src/pool.py:42 called",
        "where are expired sessions removed",
        "parse_config",
        "def f(x):\n    return x",
        "see http://example.com:8080/x\nand version 1.2.3:4",
        "",
    ],
)
def test_a_query_of_words_is_no_paste(text: str) -> None:
    assert read_paste(text) is None


def test_a_long_text_of_several_lines_is_an_issue_without_frames_too() -> None:
    issue = read("The pool is closed too early\n\nWe use `close_pool`.\n" + "It is sad.\n" * 300)
    assert (issue.frames, issue.names[0], issue.sentence) == ((), "close_pool", "The pool is closed too early")
    assert read_paste("x" * (MAX_QUERY_CHARS + 1)) is None


HOSTILE = [
    "a", "a.py:1 ", "((((", "at ", "x\n", 'File "', "a.", "::", "/", "#1 ", "`", "a_", "at a(b", ":1\n", "Error: ",
    "\\", "E  ", "a.b.c(d.java:1)\n", "@http://x:1:1\n", "\x00", "\u202e\n", "\ud800",
]  # fmt: skip


def test_the_time_grows_with_the_length_and_not_faster() -> None:
    def seconds(text: str) -> float:
        began = time.process_time()
        read_paste(text)
        return time.process_time() - began

    for part in HOSTILE:
        whole = f"x.py:1\n{part * (MAX_PASTE_CHARS // len(part))}"
        # An eighth of it takes at least a thirty-second of the time: a square would take a sixty-fourth.
        short = min(seconds(whole[: len(whole) // 8]) for _ in range(3))
        assert min(seconds(whole) for _ in range(2)) < 32 * max(short, 0.002), repr(part)


@given(
    st.text(max_size=400) | st.lists(st.sampled_from([*HOSTILE, PYTHON, JAVA, ISSUE, "\n"]), max_size=20).map("".join)
)
def test_every_text_is_accepted_and_gives_no_more_than_a_search_takes(text: str) -> None:
    paste = read_paste(text)
    if paste is None:
        return
    assert len(paste.frames) <= 30 and len(paste.names) <= 12
    assert 1 <= len(paste.phrasings) <= 3
    assert all(len(each) <= MAX_QUERY_CHARS for each in paste.phrasings)
    assert paste.used([]).startswith("Used ")
