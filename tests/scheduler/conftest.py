"""Builders of small profiles and machines. Session-wide, so that hypothesis may use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from veltair.types import CodeVersion, LatencyTable, Layer, Machine, ModelProfile, QoSTarget, Query, Tenant

# No test here fails because the machine is busy.

Rows = Sequence[Sequence[int]]  # ns, (levels, cores)


def _profile(
    layers: Sequence[Sequence[Rows]],
    *,
    levels: tuple[float, ...] = (1.0,),
    model: str = "m",
    batch: int = 1,
    flops: Sequence[int] = (),
    nbytes: int = 0,
) -> ModelProfile:
    """`layers[layer][version]` is a table of latencies in ns, (levels, cores)."""
    return ModelProfile(
        model=model,
        batch=batch,
        layers=tuple(
            Layer(i, f"layer{i}", "generic", (), (), flops=flops[i] if flops else 0, bytes=nbytes)
            for i in range(len(layers))
        ),
        versions=tuple(
            tuple(
                CodeVersion(i, j, 64, 1, f"l{i}_v{j}", LatencyTable(levels, tuple(map(tuple, rows))))
                for j, rows in enumerate(versions)
            )
            for i, versions in enumerate(layers)
        ),
        environment={},
        digest="",
    )


def _simple(*layers: Sequence[int], **rest: object) -> ModelProfile:
    """One version a layer, measured alone: each argument is a layer's ns on 1, 2, … cores."""
    return _profile([[[row]] for row in layers], **rest)  # type: ignore[arg-type]


def _machine(*sizes: int) -> Machine:
    """L3 domains of these sizes, cores counted through from 0."""
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return Machine(tuple(tuple(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)))


def _tenant(qos_ns: int, name: str = "a", model: str = "m", *, batching: bool = False) -> Tenant:
    return Tenant(name, model, QoSTarget(qos_ns), batching=batching)


def _query(id: int, arrival_ns: int = 0, tenant: str = "a", batch: int = 1) -> Query:
    return Query(id, tenant, arrival_ns, arrival_ns + 10**12, batch)


@pytest.fixture(scope="session")
def profile() -> Callable[..., ModelProfile]:
    return _profile


@pytest.fixture(scope="session")
def simple() -> Callable[..., ModelProfile]:
    return _simple


@pytest.fixture(scope="session")
def machine() -> Callable[..., Machine]:
    return _machine


@pytest.fixture(scope="session")
def tenant() -> Callable[..., Tenant]:
    return _tenant


@pytest.fixture(scope="session")
def query() -> Callable[..., Query]:
    return _query
