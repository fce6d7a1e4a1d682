"""Which requests of web pages are refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veltair.server.protocol.origin_check import OriginCheck, is_known, known_hosts

INFER, REGISTER = "/v2/models/a/infer", "/v2/systemsharedmemory/region/r/register"


def status(
    method: str = "POST",
    path: str = INFER,
    hosts: frozenset[str] = frozenset(("localhost",)),
    origins: tuple[str, ...] = (),
    version: str = "1.0",
    more: tuple[tuple[bytes, bytes], ...] = (),
    **headers: str,
) -> int:
    """What a request gets; 200 from the application behind the check."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("the body is not read")

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "http_version": version, "headers": [*raw, *more]}
    asyncio.run(OriginCheck(app, hosts, origins)(scope, receive, send))
    return int(sent[0]["status"])


def test_names_that_lead_here() -> None:
    assert status("GET", host="localhost:8000") == status("GET", host="127.0.0.1:8000") == status("GET") == 200
    assert status("GET", host="[::1]:8000") == status("GET", host="LOCALHOST.") == 200
    assert status("GET", host="evil.example:8000") == status("GET", host="localhost.evil.example") == 421
    assert status("GET", host="box:8000") == 200  # a name of the local network
    assert status("GET", host="") == status("GET", host="a:b:c") == status("GET", host="localhost:") == 421
    assert status("GET", host="my.host", hosts=known_hosts("127.0.0.1", ["My.Host"])) == 200
    assert status("GET", host="any.example", hosts=known_hosts("0.0.0.0", None)) == 200
    assert status("GET", host="any.example", hosts=known_hosts("0.0.0.0", ["my.host"])) == 421
    assert status("GET", host="any.example", hosts=known_hosts("127.0.0.1", ["*"])) == 200


def test_a_request_has_one_host() -> None:
    assert status("GET", version="1.1") == 400
    assert status("GET", version="1.1", host="localhost") == 200
    assert status("GET", version="1.1", host="localhost", more=((b"host", b"localhost"),)) == 400


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
def test_a_server_that_listens_to_this_machine_alone_is_called_localhost(address: str) -> None:
    assert known_hosts(address, None) == {"localhost"}


def test_pages_of_other_origins_change_nothing() -> None:
    own = {"host": "localhost:8000"}
    assert status(**own, origin="http://localhost:8000") == 200
    assert status(**own, origin="http://evil.example") == status(**own, origin="http://localhost:9000") == 403
    assert status(**own, origin="null") == status(**own, sec_fetch_site="cross-site") == 403
    assert status(**own, sec_fetch_site="same-site") == 403
    assert status(**own, sec_fetch_site="same-origin") == status(**own, sec_fetch_site="none") == status(**own) == 200
    assert status("GET", **own, origin="http://evil.example") == 200  # it cannot read the answer
    assert status(**own, origin="https://ours:1", origins=("https://ours:1",)) == 200


def test_shared_memory_is_not_registered_by_a_form() -> None:
    own = {"host": "localhost", "path": REGISTER}
    assert status(**own) == status(**own, content_type="application/json") == 200
    assert status(**own, content_type="text/plain;charset=UTF-8") == 415
    assert status(**own, content_type="application/x-www-form-urlencoded") == 415
    assert status(host="localhost", content_type="text/plain") == 200


@given(st.text(max_size=40))
def test_any_host_is_judged(host: str) -> None:
    is_known(host, {"localhost"})


@given(st.ip_addresses(), st.none() | st.integers(0, 65535))
def test_addresses_are_known(address: Any, port: int | None) -> None:
    name = f"[{address}]" if address.version == 6 else str(address)
    assert is_known(name if port is None else f"{name}:{port}", set())
