"""Lines that call a name, by language, and whether they are marked as imported."""

from textwrap import dedent

import pytest

from reposync.search.call_lines import call_lines
from reposync.search.call_marks import Definition, FileImports

# Language, name, lines in which definitions begin, and a text in which the lines that call the name end with `!`.
TEXTS = [
    (
        "python",
        "get",
        [1],
        """\
        @app.get !
        def get(x):
            return httpx.get(x) !
        # get(1)
        "get(2)"
        f"{get(3)}" !
        '''
        get(4)
        '''
        get[0](5)
        target(6)
        """,
    ),
    ("go", "Foo", [0], "func (x *T) Foo() {\n pkg.Foo(1) !\n y := Foo{} !\n if a == Foo {\n `Foo(2)`\nFoo[int](3) !\n"),
    (
        "c",
        "parse",
        [3],
        """\
        int parse(char *text);
        extern const struct node *parse(void);
        #define PARSE 1 // parse(1)
        int parse(char *text) {
          return parse(text); !
          node->parse(1); !
          /* parse(2)
             parse(3) */ parse(4); !
        """,
    ),
    ("cpp", "run", [], "void Task::run() {\n}\nauto x = a::run<int>(1); !\nstd::unique_ptr<int> run(int);\n"),
    (
        "ruby",
        "call",
        [0],
        "def call(env)\n app.call env !\n call(1) !\n method(:call)\n call = 3\n x.call do |y| !\n"
        " call if x\n \"#{call(2)}\" !\n",
    ),
    ("ruby", "Foo", [], "Foo.new !\nclass Foo\nA::Foo.new(1) !\nFoo::BAR\n"),
    ("rust", "foo", [0], "fn foo() {}\nfoo::<T>(1); !\nself.foo(); !\nfoo!(x); !\nlet foo = 1;\n'a' == foo\n"),
    ("javascript", "Foo", [], "import Foo from 'foo'\nFoo`x`; !\na?.Foo?.(1) !\nreturn <Foo a={1}/> !\n"
     "</Foo>\n// Foo()\nnew Foo !\n"),
    ("typescript", "load", [], "load<string>(1) !\n@load !\nfunction load(x: number): void\nconst x = load\n"),
    ("java", "Foo", [0], "@Foo\npublic Foo(int x) {\n return new Foo<>(1); !\n"
     " Foo[] y = new Foo[3];\n b().Foo(2); !\n"),
    ("kotlin", "build", [], "fun build() = 1\nbuild { x } !\nx.build(1) !\nval build = 2\n"),
    ("csharp", "Add", [], "list.Add(1); !\nnew Add { X = 1 }; !\nx?.Add<int>(2); !\nvar Add = 1;\n"),
    ("php", "save", [], "function save() {}\n$x->save(); !\n# save()\nself::save(1); !\n"),
    ("swift", "map", [], "x.map { $0 } !\nfunc map(x: Int)\nmap(1) !\n"),
    ("lua", "run", [], "run 'x' !\nrun{1} !\n-- run(1)\na:run() !\nlocal run = 1\n"),
    ("elixir", "put", [], "def put(x), do: x\nx |> put() !\nMap.put x, 1 !\nput = 1\n"),
    ("haskell", "go", [1], "go :: Int -> Int\ngo x = x\ny = go 1 !\n"),
    ("shell", "deploy", [0], "deploy() {\n}\ndeploy prod !\nif deploy; then x; fi !\n"
     "echo deploy\nx=$(deploy) !\nmy-deploy x\n"),
    ("dart", "run", [], "run(App()); !\n// run()\n"),
]  # fmt: skip


@pytest.mark.parametrize(("language", "name", "defined", "text"), TEXTS, ids=[f"{each[0]} {each[1]}" for each in TEXTS])
def test_the_lines_that_call_a_name_are_found(language: str, name: str, defined: list[int], text: str) -> None:
    marked = dedent(text).split("\n")
    plain = "\n".join(line.removesuffix(" !") for line in marked)

    found = [each.line for each in call_lines(plain, name, language, defined)]

    assert [marked[each] for each in found] == [line for line in marked if line.endswith(" !")]


def test_the_first_word_of_what_a_name_is_called_on_is_known() -> None:
    text = "a.b.name(1)\nname(2)\nc().name(3)\nd[0].name(4)\n x?.name(5)\ne::f::name(6)\n"

    assert [each.receiver for each in call_lines(text, "name", "rust")] == ["a", None, "", "", "x", "e"]


# Language, path of the file, its text with a call in the last line, and the name: of a definition in `lib`.
IMPORTED = [
    ("python", "a.py", "from lib.core import load\nload()", "load"),
    ("python", "a.py", "from lib import (\n    other,\n    load as load,\n)\nload()", "load"),
    ("python", "lib/a.py", "from .core import load\nload()", "load"),
    ("python", "a.py", "import lib.core as core\ncore.load()", "load"),
    ("python", "a.py", "import lib\nlib.load()", "load"),
    ("python", "a.py", "from lib.core import *\nload()", "load"),
    ("python", "a.py", "from lib import Store\nx.save()", "save"),
    ("javascript", "a.ts", "import { load } from './lib/core'\nload()", "load"),
    ("javascript", "a.js", "const { load } = require('./lib/core')\nload()", "load"),
    ("javascript", "a.js", "const core = require('./lib/core')\ncore.load()", "load"),
    ("javascript", "x/a.ts", "import * as core from '../lib/core.js'\ncore.load()", "load"),
    ("go", "a.go", 'package a\nimport (\n\t"fmt"\n\tc "example.com/team/lib/lib"\n)\nc.load()', "load"),
    ("go", "lib/b.go", "package lib\nload()", "load"),
    ("java", "a.java", "import static team.lib.core.load;\nload();", "load"),
    ("java", "src/main/java/lib/Other.java", "new load();", "load"),
    ("rust", "src/a.rs", "use crate::lib::{self, core::load};\nload()", "load"),
    ("rust", "src/a.rs", "use crate::lib::core;\ncore::load()", "load"),
    ("ruby", "a.rb", "require_relative 'lib/core'\nload()", "load"),
    ("c", "a.c", '#include "lib/core.h"\nload();', "load"),
    ("php", "a.php", "<?php\nuse function Lib\\Core\\load;\nload();", "load"),
    ("csharp", "a.cs", "using Lib;\nload();", "load"),
    ("elixir", "a.ex", "alias Team.Lib.Core\nCore.load(1)", "load"),
]
NOT_IMPORTED = [
    ("python", "a.py", "load()", "load"),
    ("python", "a.py", "import os\nos.load()", "load"),
    ("python", "a.py", "from marshal import load\nload()", "load"),
    ("python", "a.py", "from lib.core import other\nload()", "load"),
    ("python", "a.py", "import lib.core\nx.load()", "load"),
    ("python", "a.py", "from .core import other\nx.save()", "save"),
    ("javascript", "x/a.ts", "import { other } from './lib/core'\nload()", "load"),
    ("go", "a.go", 'package a\nimport "example.com/other"\nother.load()', "load"),
    ("go", "b/b.go", "package b\nload()", "load"),
    ("java", "a.java", "import team.other.Core;\nCore.load();", "load"),
    ("rust", "src/a.rs", "use std::core;\nload()", "load"),
]
EXTENSIONS = {"python": "py", "javascript": "ts", "rust": "rs", "ruby": "rb", "csharp": "cs", "elixir": "ex"}


def mark(language: str, path: str, text: str, name: str, *, defined_in: str | None = None) -> str:
    folder = "src/main/java/lib" if language == "java" else "lib"
    place = f"{folder}/core.{EXTENSIONS.get(language, language)}"
    kind = "method" if name == "save" else "class" if "new load" in text else "function"
    definition = Definition("1", "team/lib", place, defined_in or language, kind, frozenset({"Store", "core"}))
    imports = FileImports(text, "1", path, language, name, [definition])
    *_, call = call_lines(text, name, language)
    return imports.mark(call)


@pytest.mark.parametrize(("language", "path", "text", "name"), IMPORTED)
def test_a_call_of_what_the_file_imports_is_marked(language: str, path: str, text: str, name: str) -> None:
    assert mark(language, path, text, name) == "imported"


@pytest.mark.parametrize(("language", "path", "text", "name"), NOT_IMPORTED)
def test_a_call_of_what_the_file_does_not_import_is_one_by_name_only(
    language: str, path: str, text: str, name: str
) -> None:
    assert mark(language, path, text, name) == "name only"


@pytest.mark.parametrize(("language", "path", "text", "name"), [each for each in IMPORTED if each[0] in ("go", "ruby")])
def test_a_definition_in_a_different_language_is_never_imported(language: str, path: str, text: str, name: str) -> None:
    assert mark(language, path, text, name, defined_in="python") == "name only"


def test_a_call_in_the_file_of_the_definition_is_marked_so() -> None:
    assert mark("python", "lib/core.py", "def load(): ...\nload()", "load") == "same file"


# A pattern that looks at the same text again and again would not end.
HOSTILE = {
    "c": "a  " * 50_000 + "| load(1)\n",
    "shell": "a=" * 50_000 + "load\nload 1",
    "javascript": ("import " + " " * 5_000 + "\n") * 100 + "import a" + " " * 50_000 + "as b from 'x'\nload(1)",
    "java": "import a" + " " * 50_000 + "x\nload(1)",
    "python": "from " + "." * 50_000 + "\nimport a" + " " * 50_000 + "b\n" + '"\\' * 50_000 + '"\nload(1)',
    "rust": "use " + "a::{" * 900 + "}" * 900 + ";\nload(1)",
    "php": "use a\\{" * 10_000 + "\nload(1)",
    "go": "import (" * 10_000 + "\nload(1)",
    "ruby": "a." * 50_000 + "load(1)",
}


@pytest.mark.parametrize("language", HOSTILE)
def test_a_text_that_is_made_to_be_slow_is_read(language: str) -> None:
    text = HOSTILE[language]
    (call,) = list(call_lines(text, "load", language))[-1:]
    definition = Definition("1", "team/lib", "lib/core", language, "function")

    assert FileImports(text, "1", "a", language, "load", [definition]).mark(call) == "name only"
