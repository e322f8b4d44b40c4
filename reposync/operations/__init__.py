"""What can be done and asked: one function each, of the application, the actor and the arguments.

An operation decides who may do it, checks the state, fills in the settings, and returns one document, or raises an
error that carries next steps as values. Command line, HTTP, pages and the tools for agents parse, call an operation and
print its document; they use nothing below this package.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reposync.operations import access as access
    from reposync.operations import audit as audit
    from reposync.operations import core as core
    from reposync.operations import evaluation as evaluation
    from reposync.operations import fields as fields
    from reposync.operations import following as following
    from reposync.operations import groups as groups
    from reposync.operations import index as index
    from reposync.operations import paths as paths
    from reposync.operations import repositories as repositories
    from reposync.operations import runs as runs
    from reposync.operations import search as search
    from reposync.operations import secrets as secrets
    from reposync.operations import status as status
    from reposync.operations import syncs as syncs

_MODULES = (
    "access",
    "audit",
    "core",
    "evaluation",
    "fields",
    "following",
    "groups",
    "index",
    "paths",
    "repositories",
    "runs",
    "search",
    "secrets",
    "status",
    "syncs",
)


def __getattr__(name: str) -> ModuleType:
    """Import a module when it is first used: `--help` and the Tab key do without, which saves 0.2 to 0.7 s."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
