"""Messages of git servers, and how they are read."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.http_client import TransientFailure
from reposync.sources.smart_http import FetchRefused, PacketReader, packet, parse_capabilities


@given(lines=st.lists(st.binary(min_size=1, max_size=300), max_size=8), cuts=st.lists(st.integers(0, 2500), max_size=8))
def test_packets_are_the_same_however_the_network_cuts_them(lines: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(packet(line) for line in lines) + b"0000"
    reader = PacketReader()
    places = sorted({0, *(cut % (len(stream) + 1) for cut in cuts), len(stream)})

    found = [item for start, end in pairwise(places) for item in reader.feed(stream[start:end])]

    assert found == [*lines, None]
    assert reader.complete


@given(st.binary(max_size=100))
def test_rubbish_is_no_packet_and_raises_nothing_unforeseen(rubbish: bytes) -> None:
    reader = PacketReader()
    try:
        for _ in reader.feed(rubbish):
            pass
    except TransientFailure:
        return


def test_capabilities_contain_filters_and_hashes() -> None:
    server = parse_capabilities([b"version 2", b"agent=git/2", b"fetch=shallow filter", b"object-format=sha256"], "it")

    assert (server.filters, server.object_format) == (True, "sha256")


def test_what_git_refuses_with_is_cleaned_of_control_characters() -> None:
    with pytest.raises(FetchRefused) as refused:
        parse_capabilities([b"ERR no\x1b[31m such\r\nrepository"], "it")

    assert str(refused.value) == "no[31m such repository"
