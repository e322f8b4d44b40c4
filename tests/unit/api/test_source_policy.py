from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.config.loading import checked_repository
from reposync.config.registry import Registry, ResolvedRepository
from reposync.errors import SourceNotAllowed
from reposync.operations.hosts import check_source, is_public


def repository(**source: str) -> ResolvedRepository:
    registry = Registry.model_validate({"gitlab": [{"name": "main", "url": "http://10.0.0.1"}]})
    return checked_repository(registry, {"name": "x", **source})


NOT_PUBLIC = """
127.0.0.1 127.1 2130706433 0x7f.1 0 localhost localhost. LOCALHOST:8080 [::1] [::] [::ffff:10.0.0.1]
[64:ff9b::a9fe:a9fe] [2002:7f00:1::] [2001:0:4136:e378:8000:63bf:80ff:fffe] [fe80::1] [fd00::1]
10.1.2.3 172.16.0.1 192.168.0.1 169.254.169.254 100.64.0.1 224.0.0.1 255.255.255.255
no-such-host.invalid
"""


@pytest.mark.parametrize("host", [*NOT_PUBLIC.split(), f"{'a' * 70}.example"])
async def test_what_is_not_in_the_public_internet_is_refused(host: str) -> None:
    with pytest.raises(SourceNotAllowed, match="allow_local_sources"):
        await check_source(repository(git=f"http://{host}/x.git"), allow_local=False)


@pytest.mark.parametrize("host", ["93.184.215.14", "[2606:2800:21f:cb07:6820:80da:af6b:8b2c]", "[64:ff9b::5db8:d70e]"])
async def test_what_everybody_can_reach_is_taken(host: str) -> None:
    await check_source(repository(git=f"https://{host}/x.git"), allow_local=False)


@given(st.ip_addresses(v=4))
def test_no_way_to_write_an_ipv4_address_in_ipv6_makes_it_public(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    for written in ((0xFFFF << 32) | number, (0x64FF9B << 96) | number, (0x2002 << 112) | (number << 80)):
        assert is_public(ipaddress.IPv6Address(written)) == is_public(address)
