"""Packs made by git itself, read piece by piece, whole and damaged."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import zlib
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.sources.objects import BLOB, object_sha
from reposync.sources.packs import PackDamaged
from reposync.sources.port import Blob
from tests.fixtures.packs import assembled, blobs, header, packed_blob, received, scanned, varint
from tests.fixtures.repositories import GitRepository

BASE = "".join(f"line {number} of a file that changes a little\n" for number in range(300)).encode()
# Ten versions of one file (git makes deltas of them), an empty one, a binary one and a large one.
CONTENTS = [BASE.replace(b"line 7 ", b"line seven %d " % version) for version in range(10)]
CONTENTS += [b"", bytes(range(256)) * 20, b"x" * 300_000, random.Random(3).randbytes(200_000)]
SHAS = {object_sha(BLOB, content): content for content in CONTENTS}


FULL_DISK = """
import resource, signal
from reposync.errors import SourceUnavailable
from reposync.sources.object_stores import ReceivedPack

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
pack = ReceivedPack("here", oid_bytes=20, max_bytes=10_000_000)
try:
    for _ in range(100):
        pack.write(b"x" * 10_000)
except SourceUnavailable as error:
    print(error.retryable, error)
pack.close()
"""


@pytest.fixture(scope="module", params=["--delta-base-offset", "--no-reuse-object"], ids=["by offset", "by name"])
def pack(request: pytest.FixtureRequest) -> bytes:
    """A pack of CONTENTS, its deltas naming their base in one way or the other."""
    assert _made_by_git("--delta-base-offset") != _made_by_git("--no-reuse-object"), "git made no deltas"
    return _made_by_git(request.param)


def test_every_object_of_a_pack_is_found_with_its_content(pack: bytes) -> None:
    assert scanned(pack, max_bytes=10**9) == SHAS


@given(place=st.integers(0, 10**9), flip=st.integers(1, 255))
def test_a_changed_byte_never_passes_for_content(place: int, flip: int) -> None:
    whole = _made_by_git("--delta-base-offset")
    at = 12 + place % (len(whole) - 12 - 20)
    changed = bytearray(whole)
    changed[at] ^= flip

    try:
        found = scanned(bytes(changed), max_bytes=10**9)
    except PackDamaged:
        return
    for sha, content in found.items():
        if sha in SHAS:
            assert content == SHAS[sha]


@given(length=st.integers(0, 10**9), step=st.integers(1, 70_000))
def test_a_cut_pack_is_noticed_before_anything_is_read(length: int, step: int) -> None:
    whole = _made_by_git("--delta-base-offset")
    with pytest.raises(PackDamaged):
        received(whole[: length % len(whole)], step=step)


@given(rubbish=st.binary(max_size=200))
def test_rubbish_in_place_of_objects_is_an_error_and_nothing_else(rubbish: bytes) -> None:
    head = b"PACK\0\0\0\2\0\0\0\3"
    with pytest.raises(PackDamaged):
        scanned(head + rubbish + b"\0" * 20, max_bytes=10**9)


def test_a_received_pack_gives_the_requested_blobs_and_names_the_missing_ones(pack: bytes) -> None:
    absent, unreadable = "0" * 40, dict[str, str]()
    with closing(received(pack)) as store:
        found = store.blobs([*list(SHAS)[:5], absent], max_bytes=10**9, unreadable=unreadable)
        assert {blob.sha: blob.content for blob in found} == {sha: SHAS[sha] for sha in list(SHAS)[:5]}
    assert unreadable == {absent: "was not sent by the server"}


def test_content_over_the_limit_does_not_give_its_size_to_a_different_blob() -> None:
    page = b"<html>" * 10_000
    wanted, sent = object_sha(BLOB, b"ten bytes\n"), object_sha(BLOB, page)
    with closing(received(assembled([packed_blob(page)]))) as store:
        assert blobs(store, wanted, sent, max_bytes=1000) == {sent: Blob(sent, len(page), None)}


@pytest.mark.parametrize("claimed", [2000, 10**7])
def test_a_header_with_a_wrong_size_is_damage_and_not_a_blob_over_the_limit(claimed: int) -> None:
    with pytest.raises(PackDamaged, match="than its header says"):
        received(assembled([(header(3, claimed), zlib.compress(b"x" * 3000))]))


def test_a_full_disk_is_a_retryable_error_with_advice() -> None:
    done = subprocess.run([sys.executable, "-c", FULL_DISK], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("True A pack of the server cannot be written to disk: ")
    assert "TMPDIR" in done.stdout


def test_a_delta_that_unfolds_without_end_is_refused() -> None:
    base = b"a" * 1000
    # "A thousand bytes, from which this many million are copied": the header lies about nothing, it is just huge.
    size = varint(1000) + varint(10**12)
    pack = assembled(
        [(header(3, 1000), zlib.compress(base)), (header(6, len(size)) + b"\x80\x00", zlib.compress(size))]
    )

    with pytest.raises(PackDamaged):
        scanned(pack, max_bytes=10**9)


def test_deltas_that_are_based_on_each_other_are_refused() -> None:
    one, other = b"1" * 20, b"2" * 20
    delta = varint(4) + varint(4) + b"\x90\x04"
    pack = assembled(
        [(header(7, len(delta)) + one, zlib.compress(delta)), (header(7, len(delta)) + other, zlib.compress(delta))]
    )

    with pytest.raises(PackDamaged, match="base is missing"):
        scanned(pack, max_bytes=10**9)


@cache
def _made_by_git(*options: str) -> bytes:
    """A pack of CONTENTS. Deltas name their base unless the options say otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        repository = GitRepository.create(Path(folder) / "r.git")
        repository.commit({f"file{at}": content for at, content in enumerate(CONTENTS)})
        names = "".join(f"{sha}\n" for sha in SHAS).encode()
        return repository.git("pack-objects", "--stdout", "--no-reuse-delta", *options, stdin=names)
