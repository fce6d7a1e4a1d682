"""TLS in the I/O threads: handshakes that end anywhere, and certificates that change meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from pathlib import Path

import pytest
from certificates import authority, certificate
from native_http import GET, PLAIN, Client, HttpFronts, run

from veltair.access_config import TlsConfig
from veltair.config import LimitsConfig


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    authority(folder, "ours")
    certificate(folder, "server", "ours", "DNS:localhost")
    certificate(folder, "a.internal", "ours")
    return folder


def tls(files: Path) -> TlsConfig:
    return TlsConfig(
        certificate=f"{files}/server.pem", key=f"{files}/server.key", client_authorities=f"{files}/ours.pem"
    )


def context(files: Path) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(files / "ours.pem"))
    made.load_cert_chain(files / "a.internal.pem", files / "a.internal.key")
    return made


async def connect(fronts: HttpFronts, files: Path) -> Client:
    opened = await asyncio.open_connection(*fronts.native, ssl=context(files), server_hostname="localhost")
    fronts.clients.append(Client(*opened))
    return fronts.clients[-1]


def test_requests_with_and_without_a_plan(files: Path) -> None:
    async def test(fronts: HttpFronts) -> None:
        assert fronts.fronts.threads.use_tls(tls(files), ["a.internal"])
        client = await connect(fronts, files)
        expected = await fronts.learn(client, PLAIN)
        asked = fronts.fronts.asked_python
        for _ in range(20):
            assert await client.ask(PLAIN) == expected
            assert (await client.ask(GET)).startswith(b"HTTP/1.1 200 ")
        assert fronts.fronts.asked_python == asked

    run(test)


def test_connections_that_end_within_the_handshake(files: Path) -> None:
    async def test(fronts: HttpFronts) -> None:
        assert fronts.fronts.threads.use_tls(tls(files), [])
        chance = random.Random(7)
        hello = client_hello(files)
        for _ in range(200):
            reader, writer = await asyncio.open_connection(*fronts.native)
            data = bytearray(hello[: chance.randrange(1, len(hello) + 1)])
            if chance.random() < 0.5:
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            writer.write(data)
            if chance.random() < 0.5:
                with contextlib.suppress(ConnectionResetError, TimeoutError):
                    await asyncio.wait_for(reader.read(1), 0.01)
            writer.transport.abort()
        client = await connect(fronts, files)
        assert (await client.ask(GET)).startswith(b"HTTP/1.1 200 ")

    run(test)


def client_hello(files: Path) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context(files).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_certificates_change_while_clients_come_and_stay(files: Path) -> None:
    async def test(fronts: HttpFronts) -> None:
        threads = fronts.fronts.threads
        assert threads.use_tls(tls(files), ["a.internal"])
        stays = await connect(fronts, files)

        async def come_and_go() -> None:
            for _ in range(10):
                client = await connect(fronts, files)
                assert (await client.ask(GET)).startswith(b"HTTP/1.1 200 ")
                await client.close()

        async def change() -> None:
            for _ in range(20):
                assert await asyncio.to_thread(threads.use_tls, tls(files), ["a.internal"])

        await asyncio.gather(come_and_go(), come_and_go(), change())
        broken = TlsConfig(certificate=f"{files}/server.pem", key=f"{files}/a.internal.key")
        assert not threads.use_tls(broken, [])
        assert (await stays.ask(GET)).startswith(b"HTTP/1.1 200 ")
        assert (await (await connect(fronts, files)).ask(GET)).startswith(b"HTTP/1.1 200 ")

    run(test, threads=2)


def test_who_never_finishes_the_handshake_is_cut_off(files: Path) -> None:
    async def test(fronts: HttpFronts) -> None:
        threads = fronts.fronts.threads
        assert threads.use_tls(tls(files), [])
        for data in (b"", client_hello(files)[:10], client_hello(files)):
            reader, writer = await asyncio.open_connection(*fronts.native)
            writer.write(data)
            with contextlib.suppress(ConnectionResetError):
                await reader.read()  # up to its end
            writer.close()
        assert threads.connection_counts().expired == 3

    run(test, limits=LimitsConfig(head_s=0.2))
