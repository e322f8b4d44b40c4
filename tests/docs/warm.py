"""The program with its imports done: `python -m tests.docs.warm SOCKET` forks a process for every command.

Documentation has many commands, and a second of imports each would be most of the time of its tests. What runs is the
program's own `main`, in a process, a folder and an environment of its own. `CLIENT` is what stands on the PATH as
`reposync`.
"""

from __future__ import annotations

import array
import atexit
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import sys
from pathlib import Path

# Started for each command: nothing but what it needs, and no site packages.
CLIENT = """#!{python} -ISE
import array, json, os, signal, socket, sys

connection = socket.socket(socket.AF_UNIX)
connection.connect({socket!r})
told = json.dumps({{"arguments": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)}})
connection.sendmsg([b"\\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
connection.sendall(told.encode() + b"\\n")
answers = connection.makefile()
pid = int(answers.readline())
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, _: os.kill(pid, number))
sys.exit(int(answers.readline()))
"""
OTHERS = ("alembic.command", "langchain_text_splitters", "rich.console", "rich.table")


def main(path: str) -> None:
    for module in pkgutil.walk_packages(importlib.import_module("reposync").__path__, "reposync."):
        if not module.name.endswith("__main__") and ".migrations." not in module.name:
            importlib.import_module(module.name)
    for name in OTHERS:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    print("ready", flush=True)
    parent = os.getppid()
    listener.settimeout(1.0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while os.getppid() == parent:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        if os.fork() == 0:
            listener.close()
            connection.setblocking(True)
            attend(connection)
            return
        connection.close()


def attend(connection: socket.socket) -> None:
    """Run what the client asks for in a process of its own, and tell the client how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, rights, _, _ = connection.recvmsg(1, socket.CMSG_LEN(3 * array.array("i").itemsize))
    streams = array.array("i")
    streams.frombytes(rights[0][2])
    with connection.makefile() as requests:
        told = json.loads(requests.readline())
    pid = os.fork()
    if pid == 0:
        connection.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        be(told["arguments"], told["folder"], told["environment"])
        return
    for stream in streams:
        os.close(stream)
    connection.sendall(f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def be(arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    from reposync.cli.main import main as reposync

    # Where the program is, is this project's business and not the command's.
    environment = {**environment, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["reposync", *arguments]
    try:
        reposync()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else bool(leaving.code)
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        # Without taking every module apart: that would touch all of the memory that is shared with the parent.
        os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
