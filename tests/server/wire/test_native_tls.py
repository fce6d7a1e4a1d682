"""TLS in the I/O threads: handshakes that end anywhere, and certificates that change meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from certificates import authority, certificate
from native_front import WAIT_S
from native_http import GET, LIVE, PLAIN, Client, HttpFronts, infer, run, undated

from veltair.access_config import TlsConfig
from veltair.config import LimitsConfig

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


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


class RawClient:
    """A client over TLS that ends its side as it likes, and reads on."""

    def __init__(self, files: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context(files).wrap_bio(self._in, self._out, server_hostname="localhost")

    async def _do(self, step: Callable[[], Any]) -> Any:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                if data := self._out.read():
                    self.writer.write(data)
                if not (data := await self.reader.read(1 << 16)):
                    self._in.write_eof()
                self._in.write(data)

    async def send(self, data: bytes) -> None:
        await self._do(self._tls.do_handshake)
        self._tls.write(data)
        self.writer.write(self._out.read())

    def end(self, *, told: bool, closes: bool) -> None:
        """Send no more: `told` by close_notify, `closes` by an end of the connection's side."""
        if told:
            with contextlib.suppress(ssl.SSLWantReadError):
                self._tls.unwrap()
            self.writer.write(self._out.read())
        if closes:
            self.writer.write_eof()

    async def rest(self) -> bytes:
        """All that still comes, up to an end that the server has told."""
        data = b""
        with contextlib.suppress(ssl.SSLZeroReturnError):
            while more := await self._do(lambda: self._tls.read(1 << 16)):
                data += more
        return undated(data)


ENDS = [(True, False), (False, True), (True, True)]


@pytest.mark.parametrize(("told", "closes"), ENDS)
def test_a_client_that_sends_no_more_gets_the_answers_to_what_is_complete(
    files: Path, told: bool, closes: bool
) -> None:
    """RFC 8446, section 6.1: close_notify ends one side. RFC 9112, section 9.8: without one, what is complete is."""

    async def test(fronts: HttpFronts) -> None:
        assert fronts.fronts.threads.use_tls(tls(files), [])
        expected = await fronts.learn(await connect(fronts, files), PLAIN)

        async def end(data: bytes) -> bytes:
            client = RawClient(files, *await asyncio.open_connection(*fronts.native))
            try:
                await client.send(data)
                client.end(told=told, closes=closes)
                return await asyncio.wait_for(client.rest(), WAIT_S)
            finally:
                client.writer.transport.abort()

        unplanned = infer(request_id="any", priority=2)
        for data, answers in ((PLAIN, expected), (GET, LIVE), (unplanned, expected), (PLAIN + GET, expected + LIVE)):
            assert (await end(data)).replace(INTERIM, b"", 1) == answers
        count = fronts.scripted.count
        for part in (PLAIN[:-1], PLAIN[:40], GET[:-2]):
            assert await end(part) == b""
        assert fronts.scripted.count == count

    run(test)


@pytest.mark.parametrize(("told", "closes"), ENDS)
def test_a_client_that_has_left_is_found_out(files: Path, told: bool, closes: bool) -> None:
    async def test(fronts: HttpFronts) -> None:
        assert fronts.fronts.threads.use_tls(tls(files), [])
        client = RawClient(files, *await asyncio.open_connection(*fronts.native))
        await fronts.learn(await connect(fronts, files), PLAIN)
        await client.send(PLAIN)
        held = await fronts.scripted.next()
        client.end(told=told, closes=closes)
        client.writer.transport.abort()
        await fronts.scripted.until(lambda: fronts.scripted.aborted == [held.message.query])

    run(test, automatic=False)
