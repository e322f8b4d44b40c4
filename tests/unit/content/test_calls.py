"""Names that are called: what each language's sample has, and which chunk has which."""

from textwrap import dedent

import pytest

from reposync.content.calls import CALL_PATTERNS, MAX_CALLS, calls_of_chunks
from reposync.content.chunking import chunk_text
from reposync.content.symbols import names_of

# Grammar -> a sample, and the names that are called in it, in the order of the text.
SAMPLES = {
    "c": ("int f(void) { g(1); x->h(2); x.i(3); (*p)(4); return sizeof(int); }", "g h i"),
    "cpp": (
        "#include <a>\nint f() { g(1); x->h(2); x.i<T>(3); a::b(4); new K(5); a::c<T>(6); ns::in::deep(7); }",
        "g h i b K c deep",
    ),
    "csharp": (
        "class A { void f() { g(1); x.h(2); new K(3); x?.i(4); G<T>(1); x.J<T>(); new N.K2(); } }",
        "g h K i G J K2",
    ),
    "elixir": ("x = g(1)\nM.h(2)\ny |> i()\nj 3\n", "g h i j"),
    "go": (
        "package m\nfunc f() { g(1); x.h(2); go k(); defer a.b.c(); G[int](3); _ = T{1}; _ = &p.U{} }\n",
        "g h k c G T U",
    ),
    "haskell": ("f x = g (h x) `op` M.i y\nz = k 1 2\n", "g h op i k"),
    "java": (
        "class A { @Note void f() { g(1); x.h(2); new K(3); new p.K2<T>(); this.<T>m(1); } }",
        "g h K K2 m",
    ),
    "javascript": (
        "foo(1); a.b.c(2); new K(3); new a.K2(1); a?.opt(1); tag`x`; @dec class X {}\n"
        "const page = <Panel><div/><Nav.Item/></Panel>;\n",
        "foo c K K2 opt tag dec Panel Item",
    ),
    "kotlin": ("fun f() { g(1); x.h(2); x?.i(3); K(3); run { 1 }; x.let { it } }", "g h i K run let"),
    "lua": ("g(1) x.h(2) x:i(3) k'text' l{1}", "g h i k l"),
    "php": (
        r"<?php g(1); $x->h(2); A::b(3); new K(4); \N\f(1); $x?->i(1); new \N\K2(); $f(1);",
        "g h b K f i K2",
    ),
    "python": ("@deco\n@a.b(1)\ndef f():\n    g(1)\n    x.h.i(2)\n    K()\n    k[0](3)\n", "deco b g i K"),
    "ruby": ("g(1)\nx.h 2\nputs x\nK.new(1)\nx&.i\nA::B.new\nbare\n", "g h puts K new i B new"),
    "rust": (
        "fn f() { g(1); x.h(2); A::b(3); a::<T>(4); m!(n(5), o[6]); x.p::<T>(); q::m2!(1) }",
        "g h b a m n p m2",
    ),
    "scala": ("object A { g(1); x.h(2); new K(3); A.b[T](1); K2[T](1) }", "g h K b K2"),
    "shell": ("g 1\nfoo | bar\necho $(baz)\n", "g foo bar echo baz"),
    "swift": ("func f() { g(1); x.h(2); x?.i(3); K(4); x.map { $0 }; A<T>(1) }", "g h i K map A"),
    "tsx": ("const page = <Panel size={1}/>;\nfoo<string>(1);\n", "Panel foo"),
    "typescript": ("foo<string>(1); a.b!.c(2); new K<T>(3); @Dec() class A {}\n", "foo c K Dec"),
    "zig": ('const a = @import("a");\nfn f() void { g(1); x.h(2); }\n', "g h"),
    # Without a grammar.
    "dart": ("void main() { run(App()); if (x) { y.z (1); } }", "main run App z"),
    "objective-c": ("int main(void) { return NSApplicationMain(argc, argv); }", "main NSApplicationMain"),
}


def called(text: str, language: str) -> list[str]:
    return [each.name for each in names_of(text, "typescript" if language == "tsx" else language).calls]


@pytest.mark.parametrize("language", SAMPLES)
def test_the_names_that_a_sample_calls_are_found(language: str) -> None:
    text, expected = SAMPLES[language]

    assert called(text, language) == expected.split()


def test_every_language_with_a_grammar_has_a_sample() -> None:
    assert CALL_PATTERNS.keys() <= SAMPLES.keys()


def test_comments_strings_and_definitions_call_nothing() -> None:
    assert called('def parse(text):\n    """parse(1)"""  # parse(2)\n    return text\n', "python") == []
    assert called("Prose about parse(1).\n", "markdown") == []


def test_each_chunk_has_the_names_that_are_called_in_it_once() -> None:
    text = "é = 1\n" + "".join(f"call_{number // 2}(number)\n" for number in range(200))
    chunks = chunk_text(text, "python", 500, 100)

    of_chunks = calls_of_chunks(names_of(text, "python").calls, chunks)

    assert len(chunks) > 5
    for chunk, names in zip(chunks, of_chunks, strict=True):
        begin = [line[: line.index("(")] for line in chunk.text.split("\n") if line.startswith("call_")]
        assert list(names) == list(dict.fromkeys(begin))


def test_a_chunk_has_a_bounded_number_of_names() -> None:
    text = "".join(f"f{number}()\n" for number in range(2 * MAX_CALLS))
    chunks = chunk_text(text, "python", 100_000, 0)

    (names,) = calls_of_chunks(names_of(text, "python").calls, chunks)

    assert list(names) == [f"f{number}" for number in range(MAX_CALLS)]


def test_names_that_are_no_identifiers_are_called_by_their_last_part() -> None:
    text = dedent("""\
        a::b::very_deep<std::vector<int>>(1);
        new std::thread(2);
    """)

    assert called(text, "cpp") == ["very_deep", "thread"]
