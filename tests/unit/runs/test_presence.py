"""Whether a worker of this machine is alive, told by its lock and not by a number that may be used again."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reposync.errors import ConfigError
from reposync.runs.presence import present

WORKER = """
import sys
from pathlib import Path
from reposync.runs.presence import present
with present(Path(sys.argv[1]), "pod") as me:
    print(me.name, flush=True)
    sys.stdin.read()
"""


def test_a_living_worker_is_not_dead_and_a_killed_one_is(tmp_path: Path):
    other = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    name = other.stdout.readline().strip()
    with present(tmp_path, "pod") as me:
        assert not me.is_dead(name)
        other.send_signal(signal.SIGKILL)
        other.communicate()
        assert me.is_dead(name)
        assert not me.is_dead(me.name)
        assert not me.is_dead("other-pod:1:abcdef"), "of a different machine nothing is known"
    (left,) = (tmp_path / "workers").iterdir()
    os.utime(left, (0, 0))
    with present(tmp_path, "pod"):
        assert not left.exists(), "what was left long ago is swept away"


def test_a_pod_name_cannot_lead_out_of_the_folder(tmp_path: Path):
    with present(tmp_path, "../../evil"):
        assert [path.parent for path in tmp_path.rglob("*.lock")] == [tmp_path / "workers"]


def test_a_state_folder_that_cannot_be_written_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "workers").write_text("in the way")
    with pytest.raises(ConfigError, match=f"{tmp_path} cannot be written") as caught, present(tmp_path, "pod"):
        pytest.fail("entered")
    assert caught.value.remedy is not None
    assert "REPOSYNC_STATE_DIR" in caught.value.remedy
