"""`python3 finish.py LIST STATE USER`, run by the base's own Python in the last stage of the build.

Takes out the base's installer (an official Python image has one), compiles the modules of the standard library in LIST
where the base has no bytecode of them, and makes the folder STATE for the numeric USER and the group 0.
"""

from __future__ import annotations

import importlib.util
import os
import py_compile
import shutil
import sys
import sysconfig
from pathlib import Path

INSTALLERS = ("pip", "pip-*", "setuptools", "setuptools-*", "pkg_resources", "_distutils_hack", "wheel", "wheel-*")


def main() -> None:
    modules, state, user = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    standard = Path(sysconfig.get_path("stdlib"))
    # A distribution's Python, in /usr, is its package manager's: whoever makes that base leaves pip out.
    if standard.is_relative_to("/usr/local"):
        for pattern in INSTALLERS:
            for path in Path(sysconfig.get_path("purelib")).glob(pattern):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.rmtree(standard / "ensurepip", ignore_errors=True)
        for name in ("pip*", "wheel*", "easy_install*"):
            for path in Path("/usr/local/bin").glob(name):
                path.unlink()
    for name in modules.read_text().splitlines():
        source = standard / name
        if source.is_file() and not Path(importlib.util.cache_from_source(str(source))).exists():
            py_compile.compile(
                str(source), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
            )
    # Group 0 may do what the user may: OpenShift runs a container as any user, with that group.
    state.mkdir(parents=True)
    os.chown(state, user, 0)
    state.chmod(0o770)


if __name__ == "__main__":
    main()
