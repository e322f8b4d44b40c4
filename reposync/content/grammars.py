"""What a definition is in each language that has a tree-sitter grammar: the wheels, and queries over their trees.

A pattern captures a definition under its kind, and its name as `@name`; without one, the name is the node's field
`name`. `@scope` is no definition, but functions in it are methods. If several patterns find the same name, the first
one counts.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from reposync.content.calls import CALL_PATTERNS

if TYPE_CHECKING:
    from tree_sitter import Language, Query


@dataclass(frozen=True, slots=True)
class _Grammar:
    """`module` of the wheel, and the function in it that gives the grammar. `named`: `node kind` pairs, for nodes whose
    field `name` is the name; `query`: the other patterns."""

    module: str
    named: str
    query: str = ""
    function: str = "language"

    @property
    def patterns(self) -> str:
        # Without the field: tree-sitter analyses a pattern for up to a second (Swift), and then holds the interpreter.
        pairs = (each.split(":") for each in self.named.split())
        return self.query + "".join(f"({node}) @{kind}\n" for node, kind in pairs)


_JAVASCRIPT: Final = """
(variable_declarator name: (identifier) @name
  value: [(arrow_function) (function_expression) (generator_function)]) @function
(variable_declarator name: (identifier) @name value: (class)) @class
(assignment_expression left: [(identifier) @name (member_expression property: (property_identifier) @name)]
  right: [(arrow_function) (function_expression) (generator_function)]) @function
(pair key: (property_identifier) @name value: [(arrow_function) (function_expression)]) @method
(export_statement (lexical_declaration (variable_declarator name: (identifier) @name) @constant))
(program (lexical_declaration (variable_declarator name: (identifier) @name) @constant) (#match? @name "^[A-Z_0-9]+$"))
"""
_JAVASCRIPT_NAMED: Final = (
    "class_declaration:class class:class function_declaration:function generator_function_declaration:function"
    " method_definition:method"
)
_TYPESCRIPT: Final = _JAVASCRIPT + "(public_field_definition name: (_) @name value: (arrow_function)) @method\n"
_TYPESCRIPT_NAMED: Final = (
    _JAVASCRIPT_NAMED + " abstract_class_declaration:class interface_declaration:interface enum_declaration:enum"
    " type_alias_declaration:type internal_module:module function_signature:function method_signature:method"
    " abstract_method_signature:method"
)

_C: Final = """
(struct_specifier name: (_) @name body: (_)) @struct
(union_specifier name: (_) @name body: (_)) @struct
(enum_specifier name: (_) @name body: (_)) @enum
(type_definition type: [(struct_specifier body: (_)) (union_specifier body: (_))] declarator: (type_identifier) @name)
  @struct
(type_definition type: (enum_specifier body: (_)) declarator: (type_identifier) @name) @enum
(type_definition declarator: (type_identifier) @name) @type
(type_definition declarator: (pointer_declarator declarator: (type_identifier) @name)) @type
(type_definition declarator: (function_declarator
  declarator: (parenthesized_declarator (pointer_declarator declarator: (type_identifier) @name)))) @type
(preproc_function_def name: (_) @name) @macro
(preproc_def name: (_) @name value: (_)) @macro
(function_definition declarator: (function_declarator declarator: (_) @name)) @function
(function_definition declarator: (pointer_declarator declarator: (function_declarator declarator: (_) @name))) @function
(function_definition declarator: (pointer_declarator
  declarator: (pointer_declarator declarator: (function_declarator declarator: (_) @name)))) @function
(translation_unit (declaration (type_qualifier) declarator: (init_declarator declarator: (_) @name)) @constant)
(preproc_ifdef (declaration (type_qualifier) declarator: (init_declarator declarator: (_) @name)) @constant)
"""
_CPP: Final = (
    _C
    + """
(class_specifier name: (_) @name body: (_)) @class
(function_definition declarator: (reference_declarator (function_declarator declarator: (_) @name))) @function
"""
)

_GRAMMARS: Final[Mapping[str, _Grammar]] = {
    "c": _Grammar("tree_sitter_c", "", _C),
    "cpp": _Grammar("tree_sitter_cpp", "alias_declaration:type concept_definition:type", _CPP),
    "csharp": _Grammar(
        "tree_sitter_c_sharp",
        "class_declaration:class record_declaration:class interface_declaration:interface struct_declaration:struct"
        " enum_declaration:enum delegate_declaration:type method_declaration:method constructor_declaration:method"
        " local_function_statement:function",
        """
(field_declaration (modifier) @_modifier (variable_declaration (variable_declarator name: (_) @name))
  (#eq? @_modifier "const")) @constant
""",
    ),
    "elixir": _Grammar(
        "tree_sitter_elixir",
        "",
        """
(call target: (identifier) @_call (arguments . (alias) @name) (#any-of? @_call "defmodule" "defprotocol")) @module
(call target: (identifier) @_call
  (arguments . [(identifier) @name (call target: (identifier) @name)
    (binary_operator left: [(identifier) @name (call target: (identifier) @name)])])
  (#any-of? @_call "def" "defp" "defdelegate" "defguard" "defguardp")) @function
(call target: (identifier) @_call
  (arguments . [(identifier) @name (call target: (identifier) @name)
    (binary_operator left: [(identifier) @name (call target: (identifier) @name)])])
  (#any-of? @_call "defmacro" "defmacrop")) @macro
""",
    ),
    "go": _Grammar(
        "tree_sitter_go",
        "function_declaration:function method_declaration:method method_elem:method type_spec:type type_alias:type",
        """
(type_spec name: (_) @name type: (struct_type)) @struct
(type_spec name: (_) @name type: (interface_type)) @interface
(source_file (const_declaration (const_spec name: (identifier) @name) @constant))
(source_file (var_declaration (var_spec name: (identifier) @name) @constant))
(source_file (var_declaration (var_spec_list (var_spec name: (identifier) @name) @constant)))
""",
    ),
    "haskell": _Grammar(
        "tree_sitter_haskell",
        "data_type:type newtype:type type_synonym:type class:class",
        """
(declarations (signature name: (variable) @name) @function)
(declarations (function name: (variable) @name) @function)
(declarations (bind name: (variable) @name) @function)
""",
    ),
    "java": _Grammar(
        "tree_sitter_java",
        "class_declaration:class record_declaration:class interface_declaration:interface"
        " annotation_type_declaration:interface enum_declaration:enum method_declaration:method"
        " constructor_declaration:method compact_constructor_declaration:method",
        """
(field_declaration declarator: (variable_declarator name: (identifier) @name)
  (#match? @name "^[A-Z_0-9]+$")) @constant
(constant_declaration declarator: (variable_declarator name: (identifier) @name)) @constant
""",
    ),
    "javascript": _Grammar(
        "tree_sitter_javascript",
        _JAVASCRIPT_NAMED,
        _JAVASCRIPT + "(field_definition property: (_) @name value: (arrow_function)) @method\n",
    ),
    "kotlin": _Grammar(
        "tree_sitter_kotlin",
        "class_declaration:class object_declaration:class function_declaration:function",
        """
(class_declaration "interface" name: (_) @name) @interface
(class_declaration (modifiers (class_modifier "enum")) name: (_) @name) @enum
(type_alias type: (identifier) @name) @type
(companion_object) @scope
(property_declaration (modifiers (property_modifier "const")) (variable_declaration (identifier) @name)) @constant
""",
    ),
    "lua": _Grammar(
        "tree_sitter_lua",
        "",
        """
(function_declaration name: (method_index_expression method: (_) @name)) @method
(function_declaration name: [(identifier) @name (dot_index_expression field: (_) @name)]) @function
(assignment_statement (variable_list name: [(identifier) @name (dot_index_expression field: (_) @name)])
  (expression_list value: (function_definition))) @function
(field name: (identifier) @name value: (function_definition)) @function
""",
    ),
    "php": _Grammar(
        "tree_sitter_php",
        "class_declaration:class interface_declaration:interface trait_declaration:trait enum_declaration:enum"
        " function_definition:function method_declaration:method",
        "(const_declaration (const_element . (name) @name)) @constant\n",
        "language_php_only",
    ),
    "python": _Grammar(
        "tree_sitter_python",
        "class_definition:class function_definition:function",
        """
(type_alias_statement left: (type . (_) @name)) @type
(module (expression_statement (assignment left: (identifier) @name)) @constant (#match? @name "^[A-Z_0-9]+$"))
""",
    ),
    "ruby": _Grammar(
        "tree_sitter_ruby",
        "class:class module:module method:method singleton_method:method",
        "(assignment left: (constant) @name) @constant\n",
    ),
    "rust": _Grammar(
        "tree_sitter_rust",
        "struct_item:struct union_item:struct enum_item:enum trait_item:trait function_item:function"
        " function_signature_item:function type_item:type const_item:constant static_item:constant"
        " macro_definition:macro",
        """
(mod_item name: (_) @name body: (_)) @module
(impl_item) @scope
(function_item name: (_) @name parameters: (parameters . (self_parameter))) @method
""",
    ),
    "scala": _Grammar(
        "tree_sitter_scala",
        "class_definition:class object_definition:class trait_definition:trait enum_definition:enum"
        " function_definition:function function_declaration:function type_definition:type",
    ),
    "shell": _Grammar("tree_sitter_bash", "function_definition:function"),
    "swift": _Grammar(
        "tree_sitter_swift",
        "protocol_declaration:interface function_declaration:function protocol_function_declaration:method",
        """
(class_declaration declaration_kind: "struct" name: (type_identifier) @name) @struct
(class_declaration declaration_kind: "enum" name: (type_identifier) @name) @enum
(class_declaration name: (type_identifier) @name) @class
(class_declaration name: (user_type)) @scope
(typealias_declaration . name: (type_identifier) @name) @type
""",
    ),
    "tsx": _Grammar("tree_sitter_typescript", _TYPESCRIPT_NAMED, _TYPESCRIPT, "language_tsx"),
    "typescript": _Grammar("tree_sitter_typescript", _TYPESCRIPT_NAMED, _TYPESCRIPT, "language_typescript"),
    "zig": _Grammar(
        "tree_sitter_zig",
        "function_declaration:function",
        """
(variable_declaration . (identifier) @name (struct_declaration)) @struct
(variable_declaration . (identifier) @name (union_declaration)) @struct
(variable_declaration . (identifier) @name (enum_declaration)) @enum
(source_file (variable_declaration "const" . (identifier) @name [(integer) (float) (string)]) @constant)
""",
    ),
}
# Extensions of tree-sitter grammars: PHP without `<?php` is a different one; JSX is in JavaScript's but not in
# TypeScript's; `.h` counts as C.
_JSX: Final = re.compile(r"</[\w.]*>|/>")
_CPP_ONLY: Final = re.compile(
    r"^[ \t]*(?:class|namespace|template|using|public:|private:|protected:)\b|::", re.MULTILINE
)

GRAMMAR_LANGUAGES: Final = frozenset(_GRAMMARS) - {"tsx"}


def grammar_of(language: str | None, text: str) -> str | None:
    """The name of the grammar that reads `text` best; None if there is none for the language."""
    if language == "typescript" and _JSX.search(text):
        return "tsx"
    if language == "c" and _CPP_ONLY.search(text):
        return "cpp"
    return language if language in GRAMMAR_LANGUAGES else None


@cache
def load(name: str) -> tuple[Language, Query]:
    """Imports the wheel: 1 to 60 ms for each grammar, most of it for its query."""
    from tree_sitter import Language, Query

    grammar = _GRAMMARS[name]
    language = Language(getattr(importlib.import_module(grammar.module), grammar.function)())
    # One query: a second one would walk the tree again, which is most of its time.
    return language, Query(language, grammar.patterns + CALL_PATTERNS[name])
