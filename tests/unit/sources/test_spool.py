"""A pack on a disk that takes no more."""

import subprocess
import sys

FULL = """
import resource, signal
from reposync.errors import SourceUnavailable
from reposync.sources.spool import Spool

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
spool = Spool(oid_bytes=20, max_bytes=10_000_000)
try:
    for _ in range(100):
        spool.write(b"x" * 10_000)
except SourceUnavailable as error:
    print(error.retryable, error)
spool.close()
"""


def test_a_disk_that_takes_no_more_of_a_pack_is_told_and_tried_again() -> None:
    done = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("True A pack of the server cannot be written to disk: ")
    assert "TMPDIR" in done.stdout
