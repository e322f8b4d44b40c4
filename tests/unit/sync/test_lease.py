"""A run's right to write ends by the clock, without anybody's help."""

import pytest

from reposync.clock import elapsed_seconds
from reposync.errors import LeaseLost
from reposync.sync.lease import Lease


def test_a_lease_holds_until_its_deadline():
    Lease(60).check()
    with pytest.raises(LeaseLost, match="ran out"):
        Lease(0).check()


def test_a_lease_runs_from_when_the_claim_was_asked_for():
    Lease(60, since=elapsed_seconds() - 50).check()
    with pytest.raises(LeaseLost, match="ran out"):
        Lease(60, since=elapsed_seconds() - 61).check()


def test_a_renewal_counts_from_when_it_was_asked_for_and_never_shortens():
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
