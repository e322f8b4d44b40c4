"""Recording who searched and read what, if the operator wants it."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from reposync.errors import RepoSyncError

if TYPE_CHECKING:
    from reposync.app.application import Application

MAX_NAMES = 100
"""The number of repositories that one entry names."""


class Asking(Protocol):
    """Whoever performs an operation."""

    @property
    def name(self) -> str: ...

    @property
    def via(self) -> str: ...

    @property
    def address(self) -> str: ...


class Recording:
    """What one call showed, as far as it is known."""

    def __init__(self, named: Mapping[str, Any], asked: object) -> None:
        self._asked = asked
        self._names = {str(named["name"])} if "name" in named else set()
        self._names.update(getattr(asked, "repository", None) or ())
        self.hits: int | None = None
        self.outcome = "ok"

    def shows(self, document: object) -> None:
        # Those of `usages:NAME` are in place of hits.
        document = getattr(document, "usages", None) or document
        items = getattr(document, "items", None)
        if callable(items) or items is None:
            items = (getattr(document, "structure", None) or {}).get("files")
        if items is not None:
            self.hits = len(items)
            # Those that were asked for had no hits, if they are not in the answer.
            self._names = {name for each in items if (name := _repository(each))} or self._names
        elif name := _repository(document):
            self._names.add(name)

    @property
    def repositories(self) -> list[str]:
        return sorted(self._names)[:MAX_NAMES]

    @property
    def query(self) -> str | None:
        query = getattr(self._asked, "q", None)
        return (query if isinstance(query, str) else " | ".join(query)) if query else None


def _repository(document: Any) -> str | None:
    if isinstance(document, Mapping):
        return document.get("repository")
    found = getattr(document, "repository", None)
    return found if found is not None else getattr(document, "name", None)


@contextlib.contextmanager
def recording(
    app: Application, actor: Asking, operation: str, asked: object, named: Mapping[str, Any]
) -> Generator[Recording, None, None]:
    """One entry, whether the call answers or fails. The answer does not wait until it is written."""
    made = Recording(named, asked)
    try:
        yield made
    except RepoSyncError as error:
        made.outcome = error.code
        raise
    except asyncio.CancelledError:
        made.outcome = "CANCELLED"
        raise
    except BaseException:
        made.outcome = RepoSyncError.code
        raise
    finally:
        from reposync.store.people_tables import AuditEntry

        app.audit.add(
            AuditEntry(
                id=uuid.uuid4().hex,
                at=app.now(),
                actor=actor.name,
                via=actor.via,
                address=actor.address,
                operation=operation,
                repositories=made.repositories,
                hits=made.hits,
                outcome=made.outcome,
                query=made.query if app.configuration.registry.audit.queries else None,
            )
        )
