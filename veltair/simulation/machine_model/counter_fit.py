"""Fits the interference proxy: counters against measured slowdowns (VELTAIR sec. 4.3, Fig. 11).

A principal component analysis of all counters shows what varies. The model that the scheduler uses at run time is
linear in the L3 miss rate and the L3 accesses; its fit is judged on samples that it was not fitted to.
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


class SlowdownSample(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Counters of all cores over a window, and how much slower the layers in it were than alone.

    >>> SlowdownSample(window_ns=1000, l3_accesses=50.0, l3_misses=20.0, level=1.3).cycles is None
    True
    """

    window_ns: Annotated[int, Meta(gt=0)]
    l3_accesses: Count
    l3_misses: Count
    level: Annotated[float, Meta(ge=1)]
    instructions: Count | None = None
    cycles: Count | None = None
    flops: Count | None = None


class PrincipalComponent(msgspec.Struct, frozen=True):
    """A principal component of the standardised counters.

    >>> PrincipalComponent(0.75, {"l3_miss_rate": 0.6, "l3_accesses_per_ns": 0.8}).variance
    0.75
    """

    variance: float  # share of the whole variance
    loadings: dict[str, float]  # by counter; their squares sum to 1


class CounterFit(msgspec.Struct, frozen=True):
    """The model level = constant + per_miss_rate x (misses / accesses) + per_access_per_ns x (accesses / ns).

    ::

        found = fit_counters(read_samples(Path("samples.json")))
        found.r2_cross_validated
    """

    constant: float
    per_miss_rate: float
    per_access_per_ns: float
    r2: float  # on the samples that it was fitted to
    r2_cross_validated: float  # each sample is predicted by a fit without its fold
    r2_alone: dict[str, float]  # of a line in each counter alone
    components: list[PrincipalComponent]  # by share of the variance, descending
    samples: int


def read_samples(path: Path) -> list[SlowdownSample]:
    """Reads `{"samples": [{"window_ns", "l3_accesses", "l3_misses", "level", …}, …]}`; raises ConfigError."""
    try:
        raw = msgspec.json.decode(path.read_bytes(), type=dict[str, list[SlowdownSample]])
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}: {error}") from None
    if set(raw) != {"samples"}:
        raise ConfigError(f'{path}: expected an object with "samples", got {", ".join(map(repr, raw)) or "none"}')
    return raw["samples"]


def fit_counters(samples: Sequence[SlowdownSample], where: str = "samples") -> CounterFit:
    """Fits by least squares.

    Raises ConfigError for too few samples, samples that are all alike, and more misses than accesses.
    """
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
    constant, per_miss_rate, per_access = _fit_line(inputs, level).tolist()
    predicted = np.empty_like(level)
    fold = np.arange(len(level)) % FOLDS
    for out in range(FOLDS):
        predicted[fold == out] = _predict(inputs[fold == out], _fit_line(inputs[fold != out], level[fold != out]))
    varying = {name: column for name, column in columns.items() if np.ptp(column) > 0}
    return CounterFit(
        constant,
        per_miss_rate,
        per_access,
        _r2(level, _predict(inputs, _fit_line(inputs, level))),
        _r2(level, predicted),
        {name: _r2(level, _predict(c[:, None], _fit_line(c[:, None], level))) for name, c in varying.items()},
        principal_components(varying),
        len(samples),
    )


def principal_components(columns: dict[str, NDArray[np.float64]]) -> list[PrincipalComponent]:
    """Returns the components of counters, each of which varies, after a change to mean 0 and deviation 1."""
    matrix = np.stack(list(columns.values()), 1)
    matrix = (matrix - matrix.mean(axis=0)) / matrix.std(axis=0)
    _, singular, rows = np.linalg.svd(matrix, full_matrices=False)
    shares = singular**2 / (singular**2).sum()
    return [
        PrincipalComponent(
            round(float(share), 6), {name: round(float(x), 4) for name, x in zip(columns, row, strict=True)}
        )
        for share, row in zip(shares, rows, strict=True)
    ]


def _columns(samples: Sequence[SlowdownSample]) -> dict[str, NDArray[np.float64]]:
    """Returns the counters that all samples have, as rates."""

    def counter(name: str) -> NDArray[np.float64]:
        return np.array([getattr(sample, name) for sample in samples], float)

    window, accesses = counter("window_ns"), counter("l3_accesses")
    found = {
        "l3_miss_rate": counter("l3_misses") / np.maximum(accesses, 1),
        "l3_accesses_per_ns": accesses / window,
        "l3_misses_per_ns": counter("l3_misses") / window,
    }
    has = {n for n in ("instructions", "cycles", "flops") if all(getattr(s, n) is not None for s in samples)}
    if {"instructions", "cycles"} <= has:
        found["instructions_per_cycle"] = counter("instructions") / np.maximum(counter("cycles"), 1)
    if "instructions" in has:
        found["instructions_per_ns"] = counter("instructions") / window
    if "flops" in has:
        found["flops_per_ns"] = counter("flops") / window
    return found


def _fit_line(inputs: NDArray[np.float64], level: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.linalg.lstsq(np.column_stack([np.ones(len(inputs)), inputs]), level, rcond=None)[0])


def _predict(inputs: NDArray[np.float64], line: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(line[0] + inputs @ line[1:])


def _r2(level: NDArray[np.float64], predicted: NDArray[np.float64]) -> float:
    return round(float(1 - ((level - predicted) ** 2).sum() / ((level - level.mean()) ** 2).sum()), 4)


def encode_samples(samples: Sequence[SlowdownSample]) -> bytes:
    """Returns the content of a file for `read_samples`."""
    content: dict[str, Any] = {"samples": samples}
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"
