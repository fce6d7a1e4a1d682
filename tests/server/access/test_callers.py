"""Who a request is from, by what it shows."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veltair.access_config import ClientConfig
from veltair.errors import ForbiddenError, UnauthenticatedError
from veltair.server.access.callers import ANYBODY, Access

TOKENS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


SHOP = ClientConfig(name="shop", token_sha256=(digest("old"), digest("new")), tenants=("dlrm",))
PROBE = ClientConfig(name="probe", certificate="probe.internal", roles=("metrics",))


@given(token=TOKENS, shown=TOKENS)
def test_a_client_is_known_by_its_token_alone(token: str, shown: str) -> None:
    access = Access([ClientConfig(name="shop", token_sha256=(digest(token),))])
    password = base64.b64encode(f"anyone:{shown}".encode()).decode()
    for header in (f"Bearer {shown}", f"bearer {shown}", f"Basic {password}"):
        if shown == token:
            assert access.identify([header]).name == "shop"
        else:
            with pytest.raises(UnauthenticatedError):
                access.identify([header])


@given(header=st.text(st.characters(max_codepoint=255), max_size=40))
def test_any_other_header_is_nobody(header: str) -> None:
    with pytest.raises(UnauthenticatedError):
        Access([SHOP]).identify([header])


def test_all_tokens_of_a_client_are_taken_but_one_header_only() -> None:
    access = Access([SHOP, PROBE])
    assert access.identify(["Bearer old"]).name == access.identify(["Bearer new"]).name == "shop"
    for headers in (["Bearer old", "Bearer old"], ["Bearer "], [""], [], ["old"]):
        with pytest.raises(UnauthenticatedError):
            access.identify(headers)


def test_a_certificate_counts_where_no_header_says_otherwise() -> None:
    access = Access([SHOP, PROBE])
    assert access.identify([], "probe.internal").roles == ("metrics",)
    assert access.identify(["Bearer old"], "probe.internal").name == "shop"
    for headers, certificate in ((["Bearer no"], "probe.internal"), ([], "other.internal"), ([], "")):
        with pytest.raises(UnauthenticatedError):
            access.identify(headers, certificate)


def test_what_a_client_may_do_and_see() -> None:
    shop, probe = Access([SHOP, PROBE]).identify(["Bearer new"]), Access([PROBE]).identify([], "probe.internal")
    shop.require("infer")
    for who, role in ((shop, "metrics"), (shop, "admin"), (probe, "infer"), (probe, "admin")):
        with pytest.raises(ForbiddenError, match=role):
            who.require(role)  # type: ignore[arg-type]
    assert shop.sees("dlrm") and not shop.sees("resnet50")
    assert probe.sees("dlrm")


def test_without_clients_everybody_may_do_everything() -> None:
    access = Access()
    assert access.identify([]) is access.identify(["Bearer x"]) is ANYBODY
    assert access.knows(ANYBODY) and not access.names_callers


def test_who_was_known_before_a_reload_may_be_nobody_after_it() -> None:
    access = Access([SHOP, PROBE])
    shop, probe = access.identify(["Bearer old"]), access.identify([], "probe.internal")
    assert access.knows(shop) and access.knows(probe) and not access.knows(ANYBODY)
    fewer = ClientConfig(name="shop", token_sha256=SHOP.token_sha256, tenants=("other",))
    access.replace([fewer, PROBE])
    assert not access.knows(shop) and access.knows(probe)
    access.replace([])
    assert not access.knows(shop) and access.knows(ANYBODY)
