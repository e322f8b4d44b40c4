from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures import shared_servers
from tests.fixtures.examples import load_profile

load_profile()


def pytest_configure(config: pytest.Config) -> None:
    shared_servers.configure(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    shared_servers.configure_worker(node.config, node.workerinput)
