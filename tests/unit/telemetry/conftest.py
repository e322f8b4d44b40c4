from __future__ import annotations

import io
import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
import structlog

from reposync.telemetry.logs import NOISY, configure_logging
from reposync.telemetry.redaction import Secrets


class Log:
    """What was logged, in a stream of its own."""

    def __init__(self, secrets: Secrets) -> None:
        self.secrets = secrets
        self.stream = io.StringIO()

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    @property
    def lines(self) -> list[str]:
        # Not splitlines: it takes characters for line ends that no terminal and no log collector does.
        return self.text.rstrip("\n").split("\n") if self.text else []

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    def clear(self) -> None:
        self.stream.seek(0)
        self.stream.truncate()


Configure = Callable[..., Log]


@pytest.fixture
def configure() -> Iterator[Configure]:
    """Configures logging for the process, as the daemon does at its start; everything is as before afterwards."""
    root = logging.getLogger()
    loggers = [root, *map(logging.getLogger, NOISY)]
    handlers, levels = root.handlers, [each.level for each in loggers]
    hooks = threading.excepthook, sys.unraisablehook

    def configure(log_format: Literal["console", "json"] = "json", *secrets: str, level: str = "INFO") -> Log:
        log = Log(Secrets(secrets))
        configure_logging(log_format, pod="pod-1", secrets=log.secrets, level=level, stream=log.stream)
        return log

    yield configure
    root.handlers = handlers
    for each, level in zip(loggers, levels, strict=True):
        each.setLevel(level)
    threading.excepthook, sys.unraisablehook = hooks
    logging.captureWarnings(False)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
