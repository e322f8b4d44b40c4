"""What stands in a lock, how it is kept, and what an address of Redis may look like."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.errors import ConfigError
from reposync.runs.locks import LockHolder
from reposync.runs.redis_locks import RedisLocks
from reposync.store.history import RunHistory

RUN = "0b8a3c1e-2d4f-4a6b-8c0d-1e2f3a4b5c6d"
WORKERS = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1).filter(str.isprintable)


@given(WORKERS, st.uuids(), st.integers(0, 999_999_999))
def test_a_holder_is_read_back_as_it_was_written_whatever_the_pod_is_called(
    worker: str, run_id: uuid.UUID, attempt: int
) -> None:
    holder = LockHolder(worker, str(run_id), attempt)
    assert LockHolder.parse(holder.value) == holder


@given(st.text(st.characters(), max_size=60) | st.from_regex(r"\A.{0,9} [0-9a-f-]{30,40}:[0-9]{0,12}\Z"))
def test_what_no_reposync_wrote_is_no_holder(value: str) -> None:
    holder = LockHolder.parse(value)
    assert holder is None or holder.value == value or int(value.rpartition(":")[2]) == holder.attempt


@pytest.mark.parametrize(
    "value",
    ["", " ", "pod", "pod:1:abc", "pod:1:abc 1:2", f"{RUN}:1", f" {RUN}:1", f"pod {RUN}:", f"pod {RUN}:-1",
     f"pod {RUN}:1 ", f"pod {RUN}:1\n", f"po\nd {RUN}:1", f"pod {RUN}:9999999999", f"pod {RUN}:²"],
)  # fmt: skip
def test_a_value_that_only_looks_like_ours_is_foreign(value: str) -> None:
    assert LockHolder.parse(value) is None


@pytest.mark.parametrize(("worker", "pod"), [("pod-1:17:a1b2c3", "pod-1"), ("a:b:17:a1b2c3", "a:b"), ("odd", "odd")])
def test_the_pod_is_the_first_part_of_a_worker(worker: str, pod: str) -> None:
    assert LockHolder(worker, RUN, 1).pod == pod


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:geheimnis/x@host:6379/0",
        "redis://:geheimnis?x=1@host:6379",
        "redis://user:geheimnis#@host",
        "http://user:geheimnis@host",
        "redis://user:geheimnis@host:6379/0?socket_timeout=geheimnis",
        "redis://user:geheimnis@host:6379/0?geheimnis=1",
        "rediss://user:geheimnis@host:6379/0?ssl_cert_reqs=geheimnis",
        "redis://user:geheimnis@host:99999/0",
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        RedisLocks(url, RunHistory(None))  # type: ignore[arg-type]
    assert "REDIS_URL" in str(refused.value)
    assert "geheimnis" not in str(refused.value)


def test_a_lock_is_extended_after_a_third_of_its_time_to_live_unless_the_configuration_says_otherwise() -> None:
    def interval(configured: float | None) -> float:
        locks = RedisLocks("redis://host", RunHistory(None), ttl_seconds=1800.0, watchdog_seconds=configured)  # type: ignore[arg-type]
        return locks.watchdog_seconds

    assert (interval(None), interval(5.0)) == (600.0, 5.0)
