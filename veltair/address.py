"""Addresses as text: HOST:PORT, with an IPv6 host in brackets."""

from __future__ import annotations

import re

from veltair.errors import ConfigError


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[ipv6]:port`. Raises ConfigError.

    >>> split_address("[::1]:8000")
    ('::1', 8000)
    """
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]\s]+):(\d{1,5})", address)
    if match is None or int(match[2]) > 65535:
        raise ConfigError(f"expected host:port, got {address!r}")
    return match[1].strip("[]"), int(match[2])


def join_address(host: str, port: int) -> str:
    """The address of a host without brackets, as `split_address` takes it.

    >>> join_address("::1", 8000), join_address("localhost", 8000)
    ('[::1]:8000', 'localhost:8000')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
