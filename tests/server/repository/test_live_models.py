"""Which version a request is for."""

from pathlib import Path

import msgspec
import pytest
from in_process_front import MANIFEST

from veltair.errors import UnknownModelError
from veltair.profiles.artifact.sealed_artifact import SealedArtifact, SealedFiles
from veltair.server.repository.live_models import LiveModels
from veltair.server.repository.served_tenant import ServedTenant
from veltair.types import QoSTarget


def served(name: str, version: str, model: str = "sums") -> ServedTenant:
    manifest = msgspec.structs.replace(MANIFEST, model=model)
    artifact = SealedArtifact(Path(), manifest, "", SealedFiles(-1, -1, -1))
    return ServedTenant(name, version, artifact, QoSTarget(10), 1, batching=False)


def test_the_highest_version_is_meant_until_it_is_dropped() -> None:
    two, ten = served("a", "2"), served("a", "10")
    live = LiveModels([ten, two])
    assert live.resolve("a") is live.resolve("a", "10") is ten
    assert live.resolve("a", "2") is two
    assert live.versions("a") == ["2", "10"]
    live.drop(ten)
    assert live.resolve("a") is two
    with pytest.raises(UnknownModelError, match="no version '10'; it has 2"):
        live.resolve("a", "10")
    live.drop(two)
    with pytest.raises(UnknownModelError, match="unknown model 'a'"):
        live.resolve("a")
    assert not live.tenants
    assert not live.all()


def test_a_version_takes_the_place_of_one_with_its_number() -> None:
    old, new = served("a", "1"), served("a", "1")
    live = LiveModels([old])
    assert live.put(new) is old
    assert live.resolve("a") is new
    live.drop(old)  # it serves no longer anyway
    assert live.resolve("a") is new


def test_a_models_own_name_serves_where_one_tenant_has_it() -> None:
    live = LiveModels([served("a", "1")])
    assert live.resolve("sums").name == "a"
    live.put(served("b", "1"))
    with pytest.raises(UnknownModelError, match="several tenants"):
        live.resolve("sums")
    assert live.resolve("sums", tenant="b").name == "b"
    with pytest.raises(UnknownModelError, match="no tenant 'c' serves"):
        live.resolve("sums", tenant="c")


def test_whose_requests_change_with_a_version() -> None:
    """Those of its tenant, and of tenants that share a name or a model with it."""
    one, two, other = served("a", "1"), served("a", "2"), served("b", "1", model="others")
    live = LiveModels([one, two, other])
    assert live.competing(two) == [one, two]
    assert live.competing(served("c", "1", model="new")) == []
    assert set(live.competing(served("c", "1"))) == {one, two}  # "sums" means neither from then on
    assert live.competing(served("others", "1", model="new")) == [other]  # "others" has meant the model of b so far
    assert set(live.competing(served("a", "3", model="others"))) == {one, two, other}
