"""Stopping the native front: clients are told, queries that run are waited for, then all is closed."""

from __future__ import annotations

import asyncio
import os
import resource
import socket

import grpc
import pytest
from native_front import WAIT_S, Fronts, ask, encoded, run

from veltair.grpc.http2 import frames

DATA = encoded()


@pytest.mark.parametrize("threads", [1, 2])
def test_stopping_waits_for_queries_that_run(threads: int) -> None:
    async def body(fronts: Fronts) -> None:
        channel = fronts.channel()
        await fronts.learn(channel, DATA)
        asked = asyncio.create_task(ask(channel, DATA))
        held = await fronts.scripted.next()
        reader, writer = await idle_connection(fronts)
        stopping = asyncio.create_task(fronts.native.stop(WAIT_S))
        first = await reader.readexactly(9)  # every connection is told
        assert first[3] == frames.GOAWAY
        await reader.readexactly(int.from_bytes(first[:3], "big"))
        assert not stopping.done()
        with pytest.raises(ConnectionRefusedError):
            connect(fronts)
        fronts.scripted.end(held)
        assert (await asked).sums() == ([10.0], [104])
        await stopping
        assert await reader.read() == b""
        writer.close()
        assert fronts.service.metrics.tenants["sums"].outcomes["ok"] == 2
        with pytest.raises(ConnectionRefusedError):
            connect(fronts)

    run(body, automatic=False, threads=threads)


def connect(fronts: Fronts) -> socket.socket:
    host, _, port = fronts.native.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=WAIT_S)


def test_clients_wait_while_there_is_no_descriptor_for_them() -> None:
    async def body(fronts: Fronts) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with socket.socket() as waiting:
            highest = os.dup(waiting.fileno())
            os.close(highest)
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
            try:
                with pytest.raises(OSError, match="Too many open files"):
                    os.dup(waiting.fileno())
                host, _, port = fronts.native.address.rpartition(":")
                waiting.connect((host, int(port)))  # the system has accepted it
                waiting.setblocking(False)
                with pytest.raises(BlockingIOError):
                    waiting.recv(1)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            waiting.settimeout(WAIT_S)
            settings = await asyncio.to_thread(waiting.recv, 9)
            assert settings[3] == frames.SETTINGS

    run(body)


async def idle_connection(fronts: Fronts) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """An idle connection whose server's settings have been read."""
    reader, writer = await fronts.connect()
    while True:
        first = await reader.readexactly(9)
        await reader.readexactly(int.from_bytes(first[:3], "big"))
        if first[3] == frames.SETTINGS and first[4] & frames.ACK:
            return reader, writer


def test_what_runs_when_the_grace_is_over_is_cut_off() -> None:
    async def body(fronts: Fronts) -> None:
        channel = fronts.channel()
        await fronts.learn(channel, DATA)
        asked = [asyncio.create_task(ask(channel, DATA)) for _ in range(2)]
        for _ in asked:
            await fronts.scripted.next()
        await fronts.native.stop(0)
        for answer in await asyncio.gather(*asked):
            assert answer.code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE)

    run(body, automatic=False)
