from __future__ import annotations

import signal
from typing import Any
from unittest import mock

import pytest
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.dialects.sqlite.aiosqlite import SQLiteDialect_aiosqlite
from sqlalchemy.engine import Engine
from sqlalchemy.util import LRUCache

from tests.fixtures import shared_servers
from tests.fixtures.authorities import trust_no_public_authority
from tests.fixtures.examples import load_profile
from tests.fixtures.secret_rules import compile_rules, use_compiled_rules

load_profile()
use_compiled_rules()
trust_no_public_authority()


# Compiled SQL is kept by the databases of all tests together. Each test has engines of its own, which would compile
# every statement again: a third of the CPU of the tests of the store.
_COMPILED: LRUCache[Any, Any] = LRUCache(5_000)
mock.patch.object(Engine, "_compiled_cache", property(lambda _: _COMPILED, lambda *_: None), create=True).start()
for dialect in (PGDialect_asyncpg, SQLiteDialect_aiosqlite):
    mock.patch.object(dialect, "__hash__", lambda self: hash(type(self))).start()
    mock.patch.object(dialect, "__eq__", lambda self, other: type(self) is type(other)).start()


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts what is in the background so, and programs under test would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        compile_rules()
    shared_servers.configure(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    shared_servers.configure_worker(node.config, node.workerinput)
