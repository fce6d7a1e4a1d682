"""Addresses as text."""

from __future__ import annotations

import pytest

from veltair.address import join_address, split_address
from veltair.errors import ConfigError


@pytest.mark.parametrize(
    ("address", "parts"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:0", ("::1", 0)), ("some-host.lan:65535", ("some-host.lan", 65535))],
)
def test_an_address_is_split_and_joined(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts
    assert join_address(*parts) == address


@pytest.mark.parametrize("address", ["", ":80", "a:", "a:b", "::1:80", "a b:1", "a:-1", "a:65536", "a:80 "])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ConfigError, match="expected host:port"):
        split_address(address)
