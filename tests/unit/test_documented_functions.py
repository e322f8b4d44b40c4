"""The docstring benchmark in Go, Java and TypeScript: which functions are documented, and what is left of a file."""

from __future__ import annotations

from pathlib import Path

from benchmarks.documented import modules, without_comments

GO = """// Package chi is a router.
package chi

// FindRoute searches the routing tree for the
// best handler, by method. It returns nil if none fits.
func (n *node) FindRoute(path string) *node {
	url := "http://example.com" // not a comment inside the string
	/* several
	lines */
	if url == path {
		return n
	}
	return nil
}

// Short has one line.
func Short() {}
"""

JAVA = """/* Copyright */
class Reader {
  /**
   * Returns the {@link Token next token} of the <b>stream</b> without taking it.
   *
   * @param depth how many
   */
  @Override
  public int peek(int depth) throws IOException {
    int token = this.token;
    if (token == 0) { token = read(); }
    return token; // the token
  }

  // Takes the next token of the stream and returns it.
  int take() {
    int token = peek(0);
    this.token = 0;
    return token;
  }

  /** Closes the stream and whatever it was made from. */
  abstract void close();
}
"""

TYPESCRIPT = """/** Splits the text at every separator that is not quoted. */
export const split = (text: string): string[] => {
  const parts = []
  parts.push(`// ${text}`)
  return parts
}

class Store {
  /**
   * Tells every listener that the state has changed.
   * @internal
   */
  private notify(state: State): void {
    for (const each of this.listeners) {
      each(state)
    }
  }
}
"""


def documented(source: str, language: str) -> list[tuple[str, str]]:
    """The sentences, and the line of the remaining code that each is about."""
    code, found = without_comments(source, language)
    return [(sentence, code.split("\n")[line - 1].strip()) for sentence, line in found]


def test_a_sentence_about_a_function_in_go_does_not_name_it():
    sentence = "searches the routing tree for the best handler, by method"
    assert documented(GO, "go") == [(sentence, "func (n *node) FindRoute(path string) *node {")]


def test_a_sentence_in_java_has_no_tags_and_is_of_a_doc_comment_of_code():
    sentence = "Returns the next token of the stream without taking it"
    assert documented(JAVA, "java") == [(sentence, "public int peek(int depth) throws IOException {")]


def test_functions_in_typescript_are_found_behind_export_and_in_classes():
    assert documented(TYPESCRIPT, "typescript") == [
        ("Splits the text at every separator that is not quoted", "export const split = (text: string): string[] => {"),
        ("Tells every listener that the state has changed", "private notify(state: State): void {"),
    ]


def test_no_comment_is_left_in_the_code():
    code, _ = without_comments(GO, "go")

    assert code.split("\n") == [
        "package chi",
        "",
        "func (n *node) FindRoute(path string) *node {",
        '\turl := "http://example.com"',
        "\tif url == path {",
        "\t\treturn n",
        "\t}",
        "\treturn nil",
        "}",
        "",
        "func Short() {}",
        "",
    ]
    assert "`// ${text}`" in without_comments(TYPESCRIPT, "typescript")[0]


def test_tests_and_dependencies_are_left_out(tmp_path: Path):
    for path in ["tree.go", "tree_test.go", "vendor/a.go", "testdata/b.go", "mux/mux.go", "mux.ts"]:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(GO)

    assert sorted(module.path for module in modules(tmp_path, "go")) == ["mux/mux.go", "tree.go"]
