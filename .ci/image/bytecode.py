"""`python bytecode.py LIST`, run by the environment's own Python: try the program, and compile what it imported.

The container's file system is read-only, so what has no bytecode in the image is compiled at every start. Bytecode of
everything would be twice as large, most of it of modules that are never imported.

Every module of reposync is imported but those that need an extra, the model embeds a text, a database is made: where
that fails, the build does.
LIST gets the names of the standard library's modules among them: an official Python image has no bytecode of those.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import pkgutil
import py_compile
import sys
import sysconfig
import tempfile
from pathlib import Path

import reposync
from reposync.cli.main import cli
from reposync.config.sections import EmbeddingConfig
from reposync.embedding.static import StaticEmbedder

OF_EXTRAS = ("reposync.telemetry.traces", "reposync.embedding.local_model")
"""Modules whose libraries are not in the image."""


def main() -> None:
    for module in pkgutil.walk_packages(reposync.__path__, "reposync."):
        if not module.name.endswith("__main__") and module.name not in OF_EXTRAS:
            importlib.import_module(module.name)
    asyncio.run(try_the_model())
    with tempfile.TemporaryDirectory() as state:
        os.environ["REPOSYNC_STATE_DIR"] = state
        cli.main(["history"], standalone_mode=False)  # makes a database, with what that takes
    libraries = [Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("platlib"))]
    standard = Path(sysconfig.get_path("stdlib"))
    sources = {Path(module.__file__) for module in list(sys.modules.values()) if getattr(module, "__file__", None)}
    sources.update(Path(reposync.__path__[0]).rglob("*.py"))
    of_the_base: list[str] = []
    for path in sorted(sources):
        if path.suffix != ".py":
            continue
        if any(path.is_relative_to(folder) for folder in libraries):
            # Not looked up against its source: the two come from one build, whose time stamps mean nothing.
            py_compile.compile(str(path), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
        elif path.is_relative_to(standard):
            of_the_base.append(str(path.relative_to(standard)))
    Path(sys.argv[1]).write_text("".join(f"{name}\n" for name in of_the_base))


async def try_the_model() -> None:
    embedder = StaticEmbedder(EmbeddingConfig())
    try:
        (rows,) = await embedder.embed(["def main(): pass"])
        assert rows.shape == (1, (await embedder.spec()).dimension), rows.shape  # noqa: S101
    finally:
        await embedder.close()


if __name__ == "__main__":
    main()
