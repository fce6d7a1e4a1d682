"""Which requests of web pages are refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veltair.server.protocol.origin_check import OriginCheck, is_known, known_hosts

INFER, REGISTER = "/v2/models/a/infer", "/v2/systemsharedmemory/region/r/register"


HEADERS: dict[str, str] = {}  # of the last answer


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
    HEADERS.clear()
    HEADERS.update((name.decode(), value.decode()) for name, value in sent[0]["headers"])
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
    assert status(**own, origin="https://ours:1", origins=("https://ours:1",)) == 200


def test_pages_elsewhere_hold_nothing_open_and_may_lead_here() -> None:
    """An image, a script or a fetch of a stream costs a viewer's place though its page cannot read it."""
    own = {"host": "localhost:8000", "path": "/admin/events", "method": "GET"}
    assert status(**own, origin="http://evil.example") == status(**own, origin="null") == 403
    for site in ("cross-site", "same-site", "CROSS-SITE", ""):
        assert status(**own, sec_fetch_site=site, sec_fetch_mode="no-cors", sec_fetch_dest="image") == 403
        assert status(**own, sec_fetch_site=site, sec_fetch_mode="navigate", sec_fetch_dest="iframe") == 403
        assert status(**own, sec_fetch_site=site, sec_fetch_mode="navigate", sec_fetch_dest="document") == 200
    assert status(**own, sec_fetch_site="same-origin", sec_fetch_mode="cors", sec_fetch_dest="empty") == 200
    form = {"host": "localhost:8000", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert status(**form, sec_fetch_site="cross-site") == 403


def test_what_says_who_asks_is_given_once() -> None:
    """Of two, the next reader may take the other."""
    for name, ours, other in (
        (b"origin", b"http://localhost", b"http://evil.example"),
        (b"sec-fetch-site", b"same-origin", b"cross-site"),
    ):
        assert status(host="localhost", more=((name, ours),)) == 200
        assert status(host="localhost", more=((name, ours), (name, other))) == 400
        assert status(host="localhost", more=((name, other), (name, ours))) == 400


def test_pages_of_allowed_origins_may_ask_and_read() -> None:
    page = {"host": "localhost:8000", "origin": "https://ours:1", "origins": ("https://ours:1",)}
    wanted = {"access_control_request_method": "POST", "access_control_request_headers": "authorization,content-type"}
    assert status("OPTIONS", **page, **wanted, access_control_request_private_network="true") == 204
    assert HEADERS["access-control-allow-origin"] == "https://ours:1"
    assert HEADERS["access-control-allow-headers"] == "authorization,content-type"
    assert "POST" in HEADERS["access-control-allow-methods"]
    assert HEADERS["access-control-allow-private-network"] == "true"
    assert status(**page, sec_fetch_site="cross-site") == status("GET", **page) == 200
    assert (HEADERS["access-control-allow-origin"], HEADERS["vary"]) == ("https://ours:1", "Origin")
    assert status("OPTIONS", **page | {"origin": "http://evil.example"}, **wanted) == 403
    assert status("OPTIONS", **page | {"host": "evil.example"}, **wanted) == 421
    assert not [name for name in HEADERS if name.startswith("access-control")]
    assert status("GET", host="localhost", origins=("https://ours:1",)) == 200 and not HEADERS


def test_shared_memory_is_not_registered_by_a_form() -> None:
    own = {"host": "localhost", "path": REGISTER}
    assert status(**own) == status(**own, content_type="application/json") == 200
    assert status(**own, content_type="text/plain;charset=UTF-8") == 415
    assert status(**own, content_type="application/x-www-form-urlencoded") == 415
    assert status(host="localhost", content_type="text/plain") == 200


@given(st.text(max_size=40))
def test_any_host_is_judged(host: str) -> None:
    is_known(host, {"localhost"})


@given(st.text(st.characters(max_codepoint=255), max_size=40) | st.sampled_from(["http://[", "//]", "http://[::1%25"]))
def test_any_origin_is_judged(origin: str) -> None:
    assert status(host="localhost", more=((b"origin", origin.encode("latin-1")),)) in (200, 403)


@given(st.ip_addresses(), st.none() | st.integers(0, 65535))
def test_addresses_are_known(address: Any, port: int | None) -> None:
    name = f"[{address}]" if address.version == 6 else str(address)
    assert is_known(name if port is None else f"{name}:{port}", set())
