"""Definitions in chunks: what each language's sample has, what a cut chunk keeps, and what hostile text costs."""

import subprocess
import sys
from textwrap import dedent

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from reposync.content.chunking import chunk_text
from reposync.content.grammars import GRAMMAR_LANGUAGES
from reposync.content.model import Chunk
from reposync.content.searched_definitions import MAX_NAME_CHARS
from reposync.content.symbols import (
    KINDS,
    MAX_SYMBOLS,
    OverBudget,
    definitions,
    symbols_of_chunks,
)
from tests.fixtures.patience import PATIENCE_SECONDS

# Language -> a sample, and its definitions as `kind name first-last`.
SAMPLES = {
    "python": (
        """\
        LIMIT = 10
        name = "x"

        class Session(Base):
            SIZE = 1

            def __init__(self, user):
                self.user = user

            @staticmethod
            def parse(text):
                def inner(): return 1
                return inner()

        @decorated
        async def remove_expired():
            pass

        type Pair = tuple[int, int]
        """,
        "constant LIMIT 1-1, class Session 4-13, method __init__ 7-8, method parse 11-13, function inner 12-12,"
        " function remove_expired 16-17, type Pair 19-19",
    ),
    "javascript": (
        """\
        const express = require("express"), SIZE = 10;
        class Router {
          #secret() {}
          handle(request) {
            return 1;
          }
          match = () => 2
        }
        function* walk() {}
        const parse = async (text) => {
          return text;
        };
        exports.close = function () {};
        export const theme = {
          resolve: (name) => name,
          reset() {},
        };
        """,
        "constant SIZE 1-1, class Router 2-8, method secret 3-3, method handle 4-6, method match 7-7,"
        " function walk 9-9, function parse 10-12, function close 13-13, constant theme 14-17, method resolve 15-15,"
        " method reset 16-16",
    ),
    "typescript": (
        """\
        export interface Options {
          parse(text: string): number;
        }
        export type Name = string | null;
        enum Colour { Red }
        namespace Inner {}
        export abstract class Store<T> {
          constructor(private readonly name: string) {}
          abstract close(): void;
          load = async () => 1;
        }
        export const LIMIT: number = 1;
        export default function main(): void {}
        """,
        "interface Options 1-3, method parse 2-2, type Name 4-4, enum Colour 5-5, module Inner 6-6, class Store 7-11,"
        " method constructor 8-8, method close 9-9, method load 10-10, constant LIMIT 12-12, function main 13-13",
    ),
    "go": (
        """\
        package session

        const Limit = 10

        var (
            ErrGone = errors.New("gone")
        )

        type Session struct {
            user string
        }

        type Store interface {
            Load(name string) error
        }

        type Names = []string
        type ID int

        func (s *Session) Close() error {
            return nil
        }

        func New() *Session { return nil }
        """,
        "constant Limit 3-3, constant ErrGone 6-6, struct Session 9-11, interface Store 13-15, method Load 14-14,"
        " type Names 17-17, type ID 18-18, method Close 20-22, function New 24-24",
    ),
    "java": (
        """\
        package org.example;

        @Deprecated
        public class Session<T> implements Closeable {
            static final int LIMIT = 10, OTHER = 2;
            private String user;
            public Session() {}
            @Override
            public void close() throws IOException {
                run();
            }
            enum State { OPEN }
        }
        interface Store { void load(); }
        record Pair(int left, int right) {}
        @interface Named {}
        """,
        "class Session 3-13, constant LIMIT 5-5, constant OTHER 5-5, method Session 7-7, method close 8-11,"
        " enum State 12-12, interface Store 14-14, method load 14-14, class Pair 15-15, interface Named 16-16",
    ),
    "rust": (
        """\
        pub const LIMIT: usize = 10;
        pub struct Session<'a> { user: &'a str }
        pub enum State { Open }
        pub trait Store { fn load(&self); }
        impl Store for Session<'_> {
            fn load(&self) {
                work();
            }
            fn new() -> Self { todo!() }
        }
        mod tests {
            fn check() {}
        }
        type Names = Vec<String>;
        macro_rules! shout { () => {} }
        pub async fn run() {}
        """,
        "constant LIMIT 1-1, struct Session 2-2, enum State 3-3, trait Store 4-4, method load 4-4, method load 6-8,"
        " method new 9-9, module tests 11-13, function check 12-12, type Names 14-14, macro shout 15-15,"
        " function run 16-16",
    ),
    "c": (
        """\
        #ifndef SESSION_H
        #define SESSION_H
        #define LIMIT 10
        #define MAX(a, b) ((a) > (b) ? (a) : (b))
        typedef struct session { int user; } session_t;
        struct node { struct node *next; };
        enum state { OPEN };
        typedef int (*callback)(int);
        static const char *names[] = {"a"};
        int session_close(session_t *s);
        static struct node *
        find(int user) {
            return 0;
        }
        #endif
        """,
        "macro LIMIT 3-3, macro MAX 4-4, struct session_t 5-5, struct session 5-5, struct node 6-6, enum state 7-7,"
        " type callback 8-8, constant names 9-9, function find 11-14",
    ),
    "cpp": (
        """\
        namespace app {
        class Session : public Base {
         public:
          Session() : user_(1) {}
          ~Session() { }
          int close() const { return 1; }
          void open();
        };
        template <typename T>
        concept Named = true;
        using Names = std::vector<int>;
        }
        void app::Session::open() {
        }
        template <typename T> T& first(T& x) { return x; }
        bool operator==(const A& a, const A& b) { return true; }
        """,
        "class Session 2-8, method Session 4-4, method ~Session 5-5, method close 6-6, type Named 10-10,"
        " type Names 11-11, function open 13-14, function first 15-15, function operator== 16-16",
    ),
    "csharp": (
        """\
        namespace App;
        public sealed class Session : IDisposable {
            private const int Limit = 10;
            public string User { get; }
            public Session() {}
            public void Dispose() {
                void Inner() {}
            }
        }
        public interface IStore { void Load(); }
        public record Pair(int Left);
        struct Point {}
        enum State { Open }
        delegate void Handler(int x);
        """,
        "class Session 2-9, constant Limit 3-3, method Session 5-5, method Dispose 6-8, function Inner 7-7,"
        " interface IStore 10-10, method Load 10-10, class Pair 11-11, struct Point 12-12, enum State 13-13,"
        " type Handler 14-14",
    ),
    "ruby": (
        """\
        module App
          class Session < Base
            LIMIT = 10
            def close!
              1
            end
            def self.parse(text) = text
          end
          class Store::Memory; end
        end
        """,
        "module App 1-10, class Session 2-8, constant LIMIT 3-3, method close! 4-6, method parse 7-7,"
        " class Memory 9-9",
    ),
    "php": (
        """\
        <?php
        namespace App;
        interface Store { public function load(); }
        trait Named {}
        enum State: string { case Open = 'o'; }
        final class Session extends Base {
            const LIMIT = 10;
            public function close(): void {
            }
        }
        function helper() {}
        """,
        "interface Store 3-3, method load 3-3, trait Named 4-4, enum State 5-5, class Session 6-10, constant LIMIT 7-7,"
        " method close 8-9, function helper 11-11",
    ),
    "kotlin": (
        """\
        package app
        const val LIMIT = 10
        interface Store {
            fun load(): Int
        }
        enum class State { OPEN }
        data class Session(val user: String) {
            fun close() {}
            companion object {
                fun parse(text: String) = 1
            }
        }
        object Registry {
            fun add() {}
        }
        fun String.shout(): String = this
        typealias Names = List<String>
        """,
        "constant LIMIT 2-2, interface Store 3-5, method load 4-4, enum State 6-6, class Session 7-12,"
        " method close 8-8, method parse 10-10, class Registry 13-15, method add 14-14, function shout 16-16,"
        " type Names 17-17",
    ),
    "scala": (
        """\
        package app
        trait Store { def load: Int }
        object Registry {
          def add(x: Int) = x
        }
        case class Session(user: String) {
          def close() = {
            1
          }
        }
        enum State { case Open }
        type Names = List[String]
        def main() = 1
        """,
        "trait Store 2-2, method load 2-2, class Registry 3-5, method add 4-4, class Session 6-10, method close 7-9,"
        " enum State 11-11, type Names 12-12, function main 13-13",
    ),
    "shell": (
        """\
        #!/bin/bash
        LIMIT=10
        close_session() {
          echo closed
        }
        function parse { :; }
        """,
        "function close_session 3-5, function parse 6-6",
    ),
    "swift": (
        """\
        protocol Store { func load() }
        final class Session: Store {
            func load() {
            }
        }
        struct Point {}
        enum State { case open }
        extension Session {
            func close() {}
        }
        typealias Names = [String]
        actor Worker {}
        func main() {}
        """,
        "interface Store 1-1, method load 1-1, class Session 2-5, method load 3-4, struct Point 6-6, enum State 7-7,"
        " method close 9-9, type Names 11-11, class Worker 12-12, function main 13-13",
    ),
    "lua": (
        """\
        local function parse(text)
          return text
        end
        function Session.new() end
        function Session:close() end
        M.load = function() end
        local store = { save = function() end }
        """,
        "function parse 1-3, function new 4-4, method close 5-5, function load 6-6, function save 7-7",
    ),
    "haskell": (
        """\
        module Session where

        data State = Open | Closed
        newtype Name = Name String
        type Names = [Name]
        class Store a where
          load :: a -> Int

        close :: State -> Int
        close Open = 1
        close Closed = 2

        limit = 10
        """,
        "type State 3-3, type Name 4-4, type Names 5-5, class Store 6-7, function close 9-11, function limit 13-13",
    ),
    "elixir": (
        """\
        defmodule App.Session do
          @limit 10
          def close(%{open: true}), do: 1
          def close(_), do: 2
          defp parse(text) when is_binary(text) do
            text
          end
          defmacro shout(x), do: x
        end
        defprotocol Store do
          def load(x)
        end
        """,
        "module Session 1-9, function close 3-4, function parse 5-7, macro shout 8-8, module Store 10-12,"
        " function load 11-11",
    ),
    "zig": (
        """\
        const std = @import("std");
        pub const limit = 10;
        pub const Session = struct {
            user: u8,
            pub fn close(self: *Session) void {
                _ = self;
            }
        };
        const State = enum { open };
        const Value = union(enum) { a: u8 };
        fn main() void {}
        """,
        "constant limit 2-2, struct Session 3-8, method close 5-7, enum State 9-9, struct Value 10-10,"
        " function main 11-11",
    ),
    # By a regular expression.
    "dart": (
        """\
        class Session extends Base {
          Session(this.user);
          Future<void> close() async {
            await done();
          }
        }
        enum State { open }
        mixin Named {}
        int parse(String text) {
          return 1;
        }
        """,
        "class Session 1-6, function close 3-5, enum State 7-7, trait Named 8-8, function parse 9-11",
    ),
    "sql": (
        """\
        CREATE TABLE sessions (
          id int
        );
        create or replace function close_session(id int) returns void as $$
        begin
        end
        $$;
        CREATE VIEW open_sessions AS SELECT 1;
        """,
        "struct sessions 1-3, function close_session 4-6, struct open_sessions 8-8",
    ),
    "clojure": (
        """\
        (defn parse [text]
          (inc 1))
        (defmacro shout [x] x)
        """,
        "function parse 1-2, macro shout 3-3",
    ),
    "r": ("close <- function(x) {\n  x\n}\n", "function close 1-3"),
    "julia": ("function close(x)\n  x\nend\nstruct Point\nend\n", "function close 1-3, struct Point 4-5"),
    "perl": ("package App;\nsub close {\n  1;\n}\n", "module App 1-1, function close 2-4"),
    "powershell": ("function Close-Session {\n  1\n}\n", "function Close-Session 1-3"),
    "protobuf": ("message Session {\n}\nservice Store {\n  rpc Load(A) returns (B);\n}\n",
                 "struct Session 1-2, interface Store 3-5, method Load 4-4"),
    "solidity": ("contract Bank {\n  function pay() public {\n  }\n}\n", "class Bank 1-4, function pay 2-3"),
}  # fmt: skip


def symbols_of(text, language, first_line=1):
    """Of a file of one chunk."""
    try:
        found = definitions(text, language)
    except OverBudget:
        return ()
    lines = range(first_line, first_line + text.count("\n") + 1)
    return symbols_of_chunks(found, [Chunk(text, lines[0], lines[-1])], lines)[0]


def defined(text, language, first_line=1):
    return [f"{each.kind} {each.name} {each.start_line}-{each.end_line}"
            for each in symbols_of(text, language, first_line)]  # fmt: skip


@pytest.mark.parametrize("language", SAMPLES)
def test_the_definitions_of_a_sample_are_found_with_their_lines(language):
    text, expected = SAMPLES[language]
    assert defined(dedent(text), language) == expected.split(", ")


def test_every_language_with_a_grammar_has_a_sample():
    assert SAMPLES.keys() >= GRAMMAR_LANGUAGES


PIECES = {
    "a sentence that begins like a definition": ("dart", "class of its own, and function by name\n", []),
    "a header with classes": ("c", "class A {\n public:\n  int close() { return 1; }\n};\n",
                              ["class A 1-4", "method close 3-3"]),
    "a component with markup": ("typescript", "function Page() {\n  return <a>y</a>;\n}\nfunction f() {}\n",
                                ["function Page 1-3", "function f 4-4"]),
    "a method without its class": ("python", "    def close(self):\n        pass\n", ["method close 1-2"]),
    "a method after its class began": ("php", "        1;\n    }\n    public function close() {\n    }\n",
                                       ["method close 3-4"]),
    "a definition that goes on": ("python", "class A:\n    def close(self):\n        work()\n",
                                  ["class A 1-3", "method close 2-3"]),
}  # fmt: skip


@pytest.mark.parametrize("piece", PIECES)
def test_a_piece_of_a_file_has_its_definitions_at_the_lines_of_the_file(piece):
    language, text, expected = PIECES[piece]
    assert defined(text, language) == expected
    assert [each.start_line for each in symbols_of(text, language, 100)] == [
        99 + each.start_line for each in symbols_of(text, language, 1)
    ]


def test_prose_and_data_define_nothing():
    for language in ("markdown", "text", "json", "yaml", None):
        assert defined("def close():\n    pass\nclass Session {\n", language) == []


@pytest.mark.parametrize("language", sorted(GRAMMAR_LANGUAGES))
def test_each_chunk_of_a_long_file_has_the_definitions_of_the_file_that_begin_in_it(language):
    text = dedent(SAMPLES[language][0]) * 60
    found = definitions(text, language)
    chunks = chunk_text(text, language, 2000, 400)
    symbols = symbols_of_chunks(found, chunks)
    assert len(chunks) > 2
    assert {each for mine in symbols for each in mine} == set(symbols_of(text, language)) | {
        each for mine in symbols for each in mine if len(found) > MAX_SYMBOLS
    }
    for chunk, mine in zip(chunks, symbols, strict=True):
        assert all(chunk.start_line <= each.start_line <= chunk.end_line for each in mine)


def test_a_docstring_that_chunks_cut_defines_nothing_and_a_method_stays_one():
    lines = [f"    class word {number} def text():" for number in range(200)]
    text = '"""A module.\n\n' + "\n".join(lines) + '\n"""\nclass Session:\n    def close(self):\n        pass\n'
    chunks = chunk_text(text, "python", 1000, 200)
    assert len(chunks) > 5
    assert [f"{each.kind} {each.name} {each.start_line}-{each.end_line}"
            for mine in symbols_of_chunks(definitions(text, "python"), chunks) for each in dict.fromkeys(mine)
           ] == ["class Session 204-206", "method close 205-206"]  # fmt: skip


def test_a_function_of_a_class_that_began_some_chunks_before_is_a_method():
    """Nothing in its own chunk says so."""
    functions = [f"    @staticmethod\n    def step_{number}(value):\n        return value\n\n" for number in range(100)]
    text = "class Session:\n" + "".join(functions)
    chunks = chunk_text(text, "python", 1000, 200)
    far = symbols_of_chunks(definitions(text, "python"), chunks)[2:]
    assert len(far) > 2
    assert {each.kind for symbols in far for each in symbols} == {"method"}
    assert all(each.end_line == each.start_line + 1 for symbols in far for each in symbols)


DEEP = 20_000
HOSTILE = {
    "brackets": "(" * DEEP,
    "closed brackets": "[" * DEEP + "]" * DEEP,
    "blocks": "function f() {" * DEEP,
    "classes": "class A { " * DEEP,
    "functions": "def a():" * DEEP,
    "indentation": "\n".join(" " * depth + "def f():" for depth in range(300)),
    "one line": "x = 1; " * 500_000,
    "a name": "def " + "a" * 100_000 + "(): pass",
    "names": "def a(): pass\n" * 10_000,
    "NULs": "def a():\0\0\0 pass\n" * 100,
    "lone surrogates": "def \ud800a(): pass\ndef b(): pass",
    "invalid bytes": bytes(range(256)).decode("utf-8", "replace") * 100,
    "open strings": "\"\"\"'''`${" * 5_000,
    "heredocs": "".join(f"<<A{number}\n" for number in range(5_000)),
    "templates": "`${" * 10_000,
    "comments": "/*" * 10_000,
    "generics": "a<" * 20_000,
    "spaces": " " * 400_000 + "x",
    "modifiers": "public static " * 30 + "\n" + "public " * 10_000,
    "operators": "a " + "- " * 20_000,
    "semicolons": ";" * 100_000,
    "ends": "end\n" * 30_000,
    "guards": "f x | " * 10_000,
}


@pytest.mark.full
@pytest.mark.parametrize("language", sorted([*GRAMMAR_LANGUAGES, "dart", "sql"]))
def test_hostile_texts_cost_a_bounded_time_and_no_more(language):
    """In a process of its own: a parser that overflows the stack ends the process."""
    program = dedent(f"""
        from reposync.content.searched_definitions import MAX_NAME_CHARS
        from reposync.content.symbols import MAX_SYMBOLS
        from tests.unit.content.test_symbols import HOSTILE, symbols_of
        for text in HOSTILE.values():
            found = symbols_of(text[: {None if language == "python" else 10_000}], {language!r}, 1)
            assert len(found) <= MAX_SYMBOLS and all(len(each.name) <= MAX_NAME_CHARS for each in found)
        print("done")
    """)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr


def test_a_parser_is_stopped_after_a_bounded_number_of_steps():
    with pytest.raises(OverBudget):
        definitions("a." * 495_000, "kotlin")


fragments = st.sampled_from([
    "def f(self):\n", "class A:\n", "class A {\n", "function f() {\n", "fn f() {", "}\n", "{", "(", ")", "end\n", "\n",
    "    ", "\"", "'", "`", "/*", "*/", "#", "<?php ", "@x\n", "int main(void) {", "é", "\0", "::", "<", ">", "=", "=>",
    "module A", "def", "do\n", "x :: Int\n", "const A = struct {", "\\", "\r\n", "\u2028", "🙂",
])  # fmt: skip


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    text=st.one_of(st.text(max_size=300), st.lists(fragments, max_size=60).map("".join)),
    language=st.sampled_from(sorted([*GRAMMAR_LANGUAGES, "dart", "sql", "perl", "objective-c", "unheard-of"])),
    first_line=st.integers(1, 1000),
)
@example("class A {", "java", 5)
def test_no_text_is_an_error_and_every_line_is_within_the_chunk(text, language, first_line):
    last_line = first_line + text.count("\n")
    found = symbols_of(text, language, first_line)
    assert [each.start_line for each in found] == sorted(each.start_line for each in found)
    for each in found:
        assert first_line <= each.start_line <= each.end_line <= last_line
        assert each.kind in KINDS
        assert 0 < len(each.name) <= MAX_NAME_CHARS
    assert len(found) <= MAX_SYMBOLS
    assert found == symbols_of(text, language, first_line)


def test_a_sync_without_change_a_search_and_the_history_import_no_parser():
    program = "import sys, reposync.sync.sync_run, reposync.search.searching, reposync.api.app; "
    program += "print([each for each in sys.modules if each.startswith('tree_sitter')])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert ended.stdout == "[]\n", ended.stderr
