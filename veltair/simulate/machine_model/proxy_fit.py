"""The interference proxy, fitted: counters against measured slowdowns (VELTAIR sec. 4.3, Fig. 11).

First a principal component analysis of whatever counters there are, which says what varies; then the model that the
scheduler uses at run time, linear in the L3 miss rate and the L3 accesses, with its fit judged on samples that it was
not fitted to.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from veltair.errors import ConfigError

FOLDS = 5
LEAST_SAMPLES = 4 * FOLDS
Count = Annotated[float, Meta(ge=0)]


class Sample(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Counters of all cores over a window, and how much slower the layers in it were than alone."""

    window_ns: Annotated[int, Meta(gt=0)]
    l3_accesses: Count
    l3_misses: Count
    level: Annotated[float, Meta(ge=1)]
    instructions: Count | None = None
    cycles: Count | None = None
    flops: Count | None = None


class Component(msgspec.Struct, frozen=True):
    """A principal component of the standardised counters."""

    variance: float  # its share of the whole
    loadings: dict[str, float]  # by counter; their squares sum to 1


class CounterFit(msgspec.Struct, frozen=True):
    """level = constant + per_miss_rate x (misses / accesses) + per_access_per_ns x (accesses / ns)."""

    constant: float
    per_miss_rate: float
    per_access_per_ns: float
    r2: float  # on the samples that it was fitted to
    r2_cross_validated: float  # each sample foretold by a fit without its fold
    r2_alone: dict[str, float]  # of a line through each counter alone
    components: list[Component]  # by share of the variance, descending
    samples: int


def read_samples(path: Path) -> list[Sample]:
    """`{"samples": [{"window_ns", "l3_accesses", "l3_misses", "level", …}, …]}`. ConfigError says what is wrong."""
    try:
        raw = msgspec.json.decode(path.read_bytes(), type=dict[str, list[Sample]])
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}: {error}") from None
    if set(raw) != {"samples"}:
        raise ConfigError(f'{path}: expected an object with "samples", got {", ".join(map(repr, raw)) or "none"}')
    return raw["samples"]


def fit(samples: Sequence[Sample], where: str = "samples") -> CounterFit:
    """Least squares. ConfigError for samples too few or all alike, and for more misses than accesses."""
    if len(samples) < LEAST_SAMPLES:
        raise ConfigError(f"{where}: expected at least {LEAST_SAMPLES} samples, got {len(samples)}")
    for number, sample in enumerate(samples):
        if sample.l3_misses > sample.l3_accesses:
            raise ConfigError(f"{where}: sample {number}: more L3 misses than accesses")
    columns = _columns(samples)
    level = np.array([sample.level for sample in samples])
    inputs = np.stack([columns["l3_miss_rate"], columns["l3_accesses_per_ns"]], 1)
    if np.ptp(level) == 0 or np.ptp(inputs, axis=0).min() == 0:
        raise ConfigError(f"{where}: expected levels and counters that vary, all are the same")
    constant, per_miss_rate, per_access = _line(inputs, level).tolist()
    foretold = np.empty_like(level)
    fold = np.arange(len(level)) % FOLDS
    for out in range(FOLDS):
        foretold[fold == out] = _at(inputs[fold == out], _line(inputs[fold != out], level[fold != out]))
    varying = {name: column for name, column in columns.items() if np.ptp(column) > 0}
    return CounterFit(
        constant,
        per_miss_rate,
        per_access,
        _r2(level, _at(inputs, _line(inputs, level))),
        _r2(level, foretold),
        {name: _r2(level, _at(c[:, None], _line(c[:, None], level))) for name, c in varying.items()},
        principal_components(varying),
        len(samples),
    )


def principal_components(columns: dict[str, NDArray[np.float64]]) -> list[Component]:
    """Of counters that each vary, brought to mean 0 and deviation 1."""
    matrix = np.stack(list(columns.values()), 1)
    matrix = (matrix - matrix.mean(axis=0)) / matrix.std(axis=0)
    _, singular, rows = np.linalg.svd(matrix, full_matrices=False)
    shares = singular**2 / (singular**2).sum()
    return [
        Component(round(float(share), 6), {name: round(float(x), 4) for name, x in zip(columns, row, strict=True)})
        for share, row in zip(shares, rows, strict=True)
    ]


def _columns(samples: Sequence[Sample]) -> dict[str, NDArray[np.float64]]:
    """The counters that all samples have, as rates."""

    def column(name: str) -> NDArray[np.float64]:
        return np.array([getattr(sample, name) for sample in samples], float)

    window, accesses = column("window_ns"), column("l3_accesses")
    found = {
        "l3_miss_rate": column("l3_misses") / np.maximum(accesses, 1),
        "l3_accesses_per_ns": accesses / window,
        "l3_misses_per_ns": column("l3_misses") / window,
    }
    has = {n for n in ("instructions", "cycles", "flops") if all(getattr(s, n) is not None for s in samples)}
    if {"instructions", "cycles"} <= has:
        found["instructions_per_cycle"] = column("instructions") / np.maximum(column("cycles"), 1)
    if "instructions" in has:
        found["instructions_per_ns"] = column("instructions") / window
    if "flops" in has:
        found["flops_per_ns"] = column("flops") / window
    return found


def _line(inputs: NDArray[np.float64], level: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.linalg.lstsq(np.column_stack([np.ones(len(inputs)), inputs]), level, rcond=None)[0])


def _at(inputs: NDArray[np.float64], line: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(line[0] + inputs @ line[1:])


def _r2(level: NDArray[np.float64], foretold: NDArray[np.float64]) -> float:
    return round(float(1 - ((level - foretold) ** 2).sum() / ((level - level.mean()) ** 2).sum()), 4)


def to_json(samples: Sequence[Sample]) -> bytes:
    """What `read_samples` reads."""
    content: dict[str, Any] = {"samples": samples}
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"
