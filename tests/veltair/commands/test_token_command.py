"""Tokens that `veltair token` makes."""

import json

import pytest

from veltair.access_config import ClientConfig
from veltair.cli import main
from veltair.server.access.callers import Access


def test_a_token_is_taken_by_the_digest_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    seen = set()
    for _ in range(3):
        assert main(["token", "--json"]) == 0
        made = json.loads(capsys.readouterr().out)
        access = Access([ClientConfig(name="shop", token_sha256=(made["token_sha256"],))])
        assert access.identify([f"Bearer {made['token']}"]).name == "shop"
        seen.add(made["token"])
    assert len(seen) == 3
    assert main(["token"]) == 0
    said = capsys.readouterr().out
    assert said.count("token") == 2 and len(said.splitlines()) == 2
