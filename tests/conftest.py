from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.fixtures import shared_servers
from tests.fixtures.examples import load_profile

load_profile()


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts what is in the background so, and programs under test would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    shared_servers.configure(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    shared_servers.configure_worker(node.config, node.workerinput)
