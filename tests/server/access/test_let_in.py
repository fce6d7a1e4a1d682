"""What the start and each reload tell the I/O threads about clients."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from veltair.access_config import ClientConfig, TlsConfig
from veltair.config import ServeConfig
from veltair.errors import ConfigError
from veltair.server import lifecycle
from veltair.server.access.callers import Access
from veltair.server.access.certificates import Certificates
from veltair.server.repository.folder_reads import FolderReads

SHOP = ClientConfig(name="shop", certificate="shop.internal")


class Threads:
    """What `serve` tells them."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def name_callers(self, named: bool) -> None:
        self.told.append(named)

    def use_tls(self, tls: TlsConfig, names: Any) -> bool:
        self.told.append(list(names))
        return True


def let_in(*how: Any) -> list[str]:
    return asyncio.run(lifecycle.let_in(*how, FolderReads()))


def test_threads_name_callers_from_the_first_client_to_the_last() -> None:
    access, threads = Access(), Threads()
    for clients, told in (((SHOP,), [True]), ((SHOP,), []), ((), [False]), ((), [])):
        threads.told.clear()
        done = let_in(access, None, threads, ServeConfig(clients=clients))
        assert threads.told == told and bool(done) == bool(told)
        assert access.names_callers == bool(clients)


def test_certificates_that_cannot_be_used_change_no_clients(tmp_path: Any) -> None:
    access, threads = Access(), Threads()
    tls = TlsConfig(certificate=str(tmp_path / "a.pem"), key=str(tmp_path / "a.key"))
    certificates = Certificates(threads, tls)
    for _ in range(2):
        with pytest.raises(ConfigError, match="No such file"):
            let_in(access, certificates, threads, ServeConfig(clients=(SHOP,)))
        with pytest.raises(ConfigError, match="No such file"):
            let_in(access, certificates, threads, ServeConfig())
        assert not threads.told and not access.names_callers
