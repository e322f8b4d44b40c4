"""How many processor cores this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path


def usable_cores() -> int:
    """At least 1: a container's CPU limit is a quota, which the affinity does not show."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no limit ("max"), or no such file
        return cores
