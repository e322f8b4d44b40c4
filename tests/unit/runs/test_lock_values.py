"""What stands in a lock, how it is kept, and what an address of Redis may look like."""

import asyncio
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.errors import ConfigError
from reposync.runs.locks import LockHolder, NoLocks
from reposync.runs.redis_locks import RedisLocks, retry_pause
from reposync.runs.reporting import Observer

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


@pytest.mark.parametrize("interval", [0.0, -1.0, 1351.0, 1800.0, float("nan")])
def test_an_interval_that_cannot_keep_a_lock_alive_is_refused(interval: float) -> None:
    with pytest.raises(ConfigError, match="1350"):
        RedisLocks("redis://localhost", watchdog_seconds=interval, is_stale=_never)


def test_unavailable_redis_is_tried_again_after_a_second_at_first_and_five_at_most() -> None:
    assert [retry_pause(1800.0, failures) for failures in (1, 2, 3, 4, 1_000)] == [1.0, 2.0, 4.0, 5.0, 5.0]


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
        RedisLocks(url, is_stale=_never, observer=Observer())
    assert "REDIS_URL" in str(refused.value)
    assert "geheimnis" not in str(refused.value)


async def _never(holder: LockHolder) -> bool:
    return False


async def test_without_redis_a_guard_lets_the_sync_run_and_never_ends_it() -> None:
    locks = NoLocks()
    async with locks.guard(None) as guard:  # type: ignore[arg-type]
        watch = asyncio.create_task(guard.watch())
        done, _ = await asyncio.wait({watch}, timeout=0.01)
        assert not done
        watch.cancel()
    assert await locks.list() == []
    assert not await locks.release("id", "value")
