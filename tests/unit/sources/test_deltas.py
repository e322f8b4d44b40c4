"""Deltas that are large, many or hostile: no memory goes with their size, no time with their order."""

from __future__ import annotations

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.sources.object_stores import ReceivedPack
from reposync.sources.objects import BLOB, object_sha
from reposync.sources.packs import PackDamaged
from tests.fixtures.packs import (
    assembled,
    blobs,
    copy,
    delta,
    header,
    packed_blob,
    packed_delta,
    received,
    scanned,
)

MEGABYTE = 1024 * 1024
BASE = random.Random(1).randbytes(MEGABYTE) * 60
SMALL = BASE[5:15]

READ = """
import resource, sys
from reposync.sources.object_stores import ReceivedPack

pack = ReceivedPack("here", oid_bytes=20, max_bytes=10**9)
with open(sys.argv[1], "rb") as file:
    while piece := file.read(2**20):
        pack.write(piece)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
pack.finish()
blobs = pack.blobs(sys.argv[2:], max_bytes=10**6, unreadable={})
found = {blob.sha: (blob.size_bytes, blob.content) for blob in sorted(blobs, key=lambda blob: -blob.size_bytes)}
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, found)
"""


@pytest.fixture(params=["in memory", "through files"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "through files":
        monkeypatch.setattr("reposync.sources.packs.MEMORY_BYTES", 10)


def read_in_a_child(tmp_path: Path, pack: bytes, *wanted: str) -> tuple[int, str]:
    """By how many megabytes its peak memory grew, and what it found."""
    path = tmp_path / "a.pack"
    path.write_bytes(pack)
    done = subprocess.run([sys.executable, "-c", READ, path, *wanted], capture_output=True, text=True, check=True)
    grown, _, found = done.stdout.strip().partition(" ")
    return int(grown), found


def test_a_large_file_that_comes_as_a_delta_does_not_enter_memory(tmp_path: Path) -> None:
    changed = BASE[:-7] + b"changed"
    like_it = delta(len(BASE), len(BASE), *copy(0, len(BASE) - 7), b"\x07changed")
    names = [object_sha(BLOB, each) for each in (BASE, changed, SMALL)]
    pack = assembled(
        [
            packed_blob(BASE),
            packed_delta(names[0], like_it),
            packed_delta(names[1], delta(len(BASE), 10, *copy(5, 10))),
        ]
    )

    grown, found = read_in_a_child(tmp_path, pack, *names)

    assert found == str({names[0]: (len(BASE), None), names[1]: (len(BASE), None), names[2]: (10, SMALL)})
    assert grown < 50  # not even one of the two; in memory it is three times as much


def test_a_delta_bomb_does_not_enter_memory(tmp_path: Path) -> None:
    base = b"a" * 65_536
    bomb = delta(len(base), 200 * MEGABYTE, b"\xc0\x01" * (200 * MEGABYTE // len(base)))
    pack = assembled([packed_blob(base), packed_delta(object_sha(BLOB, base), bomb)])
    assert len(pack) < 500
    name = object_sha(BLOB, b"a" * (200 * MEGABYTE))

    grown, found = read_in_a_child(tmp_path, pack, name)

    assert found == str({name: (200 * MEGABYTE, None)})
    assert grown < 50


@pytest.mark.usefixtures("way")
@given(seed=st.integers(0, 2**32), count=st.integers(1, 30), by_offset=st.booleans())
def test_every_order_of_bases_and_deltas_gives_every_object(seed: int, count: int, by_offset: bool) -> None:
    """Each object is based on one of those before it, small or large."""
    dice = random.Random(seed)
    contents = [b"the first one, of forty bytes or so........"]
    objects = [packed_blob(contents[0])]
    for number in range(count):
        base = dice.choice(contents)
        cut = dice.randrange(len(base))
        new = b"%d" % number
        instructions = [bytes([len(new)]) + new, *copy(cut, len(base) - cut), *copy(0, cut)]
        contents.append(new + base[cut:] + base[:cut])
        objects.append(packed_delta(object_sha(BLOB, base), delta(len(base), len(contents[-1]), *instructions)))
    if not by_offset:
        dice.shuffle(objects)

    assert scanned(assembled(objects), max_bytes=10**9) == {object_sha(BLOB, each): each for each in contents}


def test_a_pack_of_reversed_deltas_takes_time_by_its_length_alone() -> None:
    """Looking at all that wait again for each one would take ten minutes: the suite's time-out is the assertion."""
    content, objects = b"%08d" % 0 + b"x" * 32, []
    objects.append(packed_blob(content))
    for number in range(1, 60_000):
        changed = delta(40, 40, b"\x08%08d" % number, *copy(8, 32))
        objects.append(packed_delta(object_sha(BLOB, content), changed))
        content = b"%08d" % number + content[8:]
    last = object_sha(BLOB, content)

    with closing(received(assembled(objects[::-1]))) as pack:
        assert blobs(pack, last)[last].content == content


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    "wrong",
    [
        delta(41, 40, *copy(0, 40)),
        delta(40, 41, *copy(0, 40)),
        delta(40, 39, *copy(0, 40)),
        delta(40, 40, *copy(1, 40)),
        delta(40, 40, b"\x28only a few"),
        delta(40, 40, b"\xff\x00"),
        delta(40, 40, b"\x00"),
        delta(40, 40, b"\x00" * 40),
        delta(40, 40),
        b"\x28",
        b"\xff\xff",
    ],
)
def test_a_delta_that_does_not_fit_its_base_is_damage(wrong: bytes) -> None:
    base = b"x" * 40

    with pytest.raises(PackDamaged, match="delta"):
        scanned(assembled([packed_blob(base), packed_delta(object_sha(BLOB, base), wrong)]), max_bytes=1000)


def test_closing_a_pack_ends_the_thread_that_reads_it() -> None:
    """50 GB of zeros take minutes to inflate and to hash, and would end without a blob and without an error."""
    _, zeros = packed_blob(b"\0" * (100 * MEGABYTE), 9)
    pack = ReceivedPack("here", oid_bytes=20, max_bytes=10**9)
    pack.write(assembled([(header(3, 100 * MEGABYTE), zeros)] * 500))
    with ThreadPoolExecutor(1) as alone:
        indexing = alone.submit(pack.finish)
        while pack._pack is None:
            pass
        pack.close()

        with pytest.raises((PackDamaged, OSError)):
            indexing.result()
