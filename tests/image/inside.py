"""`python inside.py make|enter SPEC PROGRAM ...`: becomes a container's process. Run by `container.py` in namespaces.

`make` is the first process: it mounts what the container sees, below its root, where its own mount namespace alone sees
it. Only util-linux is needed: container runtimes want control groups, which a machine that is a container rarely has.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

_PR_SET_NO_NEW_PRIVS = 38
_SIOCSIFFLAGS = 0x8914
_IFF_UP_RUNNING = 0x41
_DEVICES = ("null", "zero", "full", "random", "urandom")


def main() -> None:
    how, spec, program = sys.argv[1], json.loads(Path(sys.argv[2]).read_text()), sys.argv[3:]
    root = Path(spec["root"])
    if how == "make":
        _raise_loopback()
        _mount(root, spec)
    uid, gid = spec["user"]
    os.chroot(root)
    os.chdir(spec["folder"])
    os.umask(0o022)
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        sys.exit("no_new_privs is refused")
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)  # the capabilities go with it
    os.execvpe(program[0], program, spec["environment"])


def _mount(root: Path, spec: dict[str, Any]) -> None:
    def mount(*arguments: str | Path) -> None:
        subprocess.run(["mount", *arguments], check=True)

    mount("--bind", spec["image"], root)
    mount("-o", "remount,bind,ro", root)
    mount("-t", "proc", "-o", "nosuid,noexec,nodev", "proc", root / "proc")
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", root / "dev")
    for name in _DEVICES:
        (root / "dev" / name).touch()
        mount("--bind", f"/dev/{name}", root / "dev" / name)
    (root / "dev" / "shm").mkdir()
    for folder in ("tmp", "dev/shm"):
        mount("-t", "tmpfs", "-o", "mode=1777,nosuid,nodev,noexec", "tmpfs", root / folder)
    for inside, (outside, options) in spec["mounts"].items():
        mount("--bind", outside, root / inside)
        mount("-o", f"remount,bind,nosuid,nodev,{options}", root / inside)


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP_RUNNING))


if __name__ == "__main__":
    main()
