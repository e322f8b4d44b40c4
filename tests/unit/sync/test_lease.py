"""A run's right to write ends by the clock, without anybody's help."""

import shutil
import subprocess
import sys

import pytest

from reposync.clock import elapsed_seconds
from reposync.errors import LeaseLost
from reposync.sync.lease import Lease


def test_a_lease_holds_until_its_deadline_which_counts_from_the_request_of_the_claim():
    now = elapsed_seconds()
    for lease in (Lease(60), Lease(60, since=now - 50)):
        lease.check()
    for lease in (Lease(0), Lease(60, since=now - 61)):
        with pytest.raises(LeaseLost, match="expired"):
            lease.check()


def test_a_renewal_counts_from_its_request_and_never_shortens():
    lease = Lease(0)
    lease.extend(60, since=elapsed_seconds() - 120)
    with pytest.raises(LeaseLost):
        lease.check()
    lease.extend(60, since=elapsed_seconds())
    lease.extend(1, since=elapsed_seconds() - 10)
    lease.check()


def test_a_lost_lease_stays_lost():
    lease = Lease(60)
    lease.lose("taken over")
    lease.extend(60, since=elapsed_seconds())
    with pytest.raises(LeaseLost, match="taken over"):
        lease.check()


ASKS = """
import time
from reposync.clock import elapsed_seconds
print(elapsed_seconds() - time.monotonic())
"""


def test_a_lease_runs_on_while_the_machine_is_suspended():
    """In a time namespace where the machine seems to have been suspended for a day."""
    suspended = ["unshare", "--time", "--boottime", "86400", "--monotonic", "0", "--fork"]
    if shutil.which("unshare") is None or subprocess.run([*suspended, "true"], capture_output=True).returncode:
        pytest.skip("no time namespaces here")

    done = subprocess.run([*suspended, sys.executable, "-c", ASKS], capture_output=True, text=True, check=True)

    assert float(done.stdout) == pytest.approx(86_400, abs=60)
