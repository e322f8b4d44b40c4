"""An error that outlives its handler keeps the frames of its traceback, and all that these hold: connections, cursors,
texts. What has to be known later is kept as code and message, or as the error `without_traceback()`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import reposync

KEEPS = {"add", "append", "insert", "put_nowait", "set_exception", "set_result", "setdefault"}


def kept(source: str) -> Iterator[str]:
    """Statements of handlers by which the error is stored or returned."""
    for handler in ast.walk(ast.parse(source)):
        if not isinstance(handler, ast.ExceptHandler) or handler.name is None:
            continue
        for node in (node for statement in handler.body for node in ast.walk(statement)):
            match node:
                case ast.Assign(targets=[ast.Attribute(attr="__cause__")]):
                    continue
                case ast.Assign() | ast.AnnAssign() | ast.NamedExpr() | ast.Return() | ast.Yield():
                    values = [node.value]
                case ast.Call(func=ast.Attribute(attr=name), args=values) if name in KEEPS:
                    pass
                case _:
                    continue
            if any(is_held(value, handler.name) for value in values):
                yield ast.unparse(node)


def is_held(value: ast.expr | None, name: str) -> bool:
    match value:
        case ast.Name():
            return value.id == name
        case ast.Tuple() | ast.List() | ast.Set():
            return any(is_held(each, name) for each in value.elts)
        case ast.BoolOp() | ast.Dict():
            return any(is_held(each, name) for each in value.values)
        case ast.IfExp():
            return is_held(value.body, name) or is_held(value.orelse, name)
    return False


def test_no_error_outlives_its_handler() -> None:
    root = Path(reposync.__file__).parent
    found = {str(path.relative_to(root)): [*kept(path.read_text())] for path in root.rglob("*.py")}
    assert {path: statements for path, statements in found.items() if statements} == {}


@pytest.mark.parametrize(
    ("statement", "is_kept"),
    [
        ("self.error = error", True),
        ("problem = error", True),
        ("found[key] = None or error", True),
        ("errors.append((run, error))", True),
        ("return {run: error}", True),
        ("self.problem = str(error), error.code", False),
        ("return error.without_traceback()", False),
        ("raise Failed() from error", False),
    ],
)
def test_statements_that_keep_an_error_are_found(statement: str, is_kept: bool) -> None:
    assert bool([*kept(f"def f():\n try: ...\n except ValueError as error:\n  {statement}\n")]) is is_kept
