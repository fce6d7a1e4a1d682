"""The answer that a manifest keeps: what the artifact computed when it was compiled, compared whenever it is loaded.

Digests say that the files are those that were written. They do not say that these files compute what the compiler saw:
another model's weights may have been put in their place with new digests, or kernels may compute something else on
this CPU. So a manifest holds a few numbers of each output, at batch 1, for inputs that everyone draws alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.profiles.artifact.input_layout import InputLayout
from veltair.profiles.artifact.manifest import ExpectedAnswer, ExpectedOutput, Manifest, Port
from veltair.profiles.artifact.strings import Strings

SEED = 57
MOST_VALUES = 64  # of an output
HUGE = 1e30  # magnitudes that no network computes with: they stand for infinity
RAW_ID_BITS = 40  # of raw integer features, which are hashed or looked up: any value is valid
MOST_TEXT_BYTES = 64  # of a raw text
# What an answer is compared with was computed by the same kernels, so it is held to less than a model in bfloat16 is
# against a reference in float32: to what its code versions differ by among each other, with some margin.
LEAST_TOLERANCE = {"fp32": 1e-3, "bf16": 2e-2}
MARGIN = 4.0


def draw_inputs(manifest: Manifest) -> dict[str, NDArray[Any] | Strings]:
    """Inputs at batch 1 by name, the same on every machine and with every version of NumPy.

    They come from the bits of a PCG64, whose stream NumPy promises not to change; its distributions it may change.
    Floats are about normal, ids uniform in their range, integers without a range a mask of 0 and 1. Raw features are
    integers of all magnitudes and texts of decimal numbers.
    """
    bits = np.random.PCG64(SEED)
    return {port.name: _draw(port, bits) for port in manifest.inputs}


def draw_tensors(manifest: Manifest, arrays: Sequence[NDArray[Any]]) -> None:
    """Fill arrays for the manifest's input tensors at batch 1 with `draw_inputs`."""
    InputLayout.of(manifest).fill(arrays, draw_inputs(manifest), 1)


def positions(size: int) -> NDArray[np.int64]:
    """Which values of an output of this size are kept: all of a small one, else evenly spaced ones.

    >>> positions(3).tolist(), positions(1000)[:3].tolist(), len(positions(1000))
    ([0, 1, 2], [0, 15, 31], 64)
    """
    count = min(size, MOST_VALUES)
    return np.arange(count, dtype=np.int64) * max(size - 1, 0) // max(count - 1, 1)


def as_numbers(array: NDArray[Any]) -> NDArray[np.float64]:
    """The array as float64; uint16 values are the bits of bfloat16."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


def make_answer(manifest: Manifest, runs: Sequence[Sequence[NDArray[Any]]]) -> ExpectedAnswer:
    """The answer to keep. `runs`: for each version index, all outputs of the model on `draw_inputs`.

    A value on which the versions disagree by more than the artifact's tolerance is left out (the rank of two scores
    that are nearly the same, for example), and so is one that is not finite.
    """
    spread, outputs = 0.0, []
    for index in range(len(manifest.output_tensors)):
        exact = _is_exact(runs[0][index])
        samples = np.array([_samples(run[index]) for run in runs])
        largest = np.array([_largest(run[index]) for run in runs])
        errors = np.array([_errors(row, samples[0], largest[0]) for row in samples]).max(axis=0)
        size_error = float(_errors(largest, largest[:1], largest[0]).max(initial=0.0))
        allowed = 0.0 if exact else manifest.tolerance
        kept = np.isfinite(samples).all(axis=0) & (errors <= allowed)
        values = tuple(float(value) if keep else None for value, keep in zip(samples[0], kept, strict=True))
        outputs.append(ExpectedOutput(values, float(largest[0]) if size_error <= allowed else None))
        spread = max(spread, float(errors[kept].max(initial=0.0)))
    tolerance = max(LEAST_TOLERANCE[manifest.precision], MARGIN * spread)
    return ExpectedAnswer(min(manifest.tolerance, tolerance), tuple(outputs))


def find_deviation(manifest: Manifest, outputs: Sequence[NDArray[Any]], version: int) -> str:
    """How one version index deviates from the manifest's answer; empty where it does not, or where there is none.

    `outputs`: those of the model on `draw_inputs`, each layer in this version.
    """
    if manifest.answer is None:
        return ""
    for port, output, expected in zip(manifest.output_tensors, outputs, manifest.answer.outputs, strict=True):
        allowed = 0.0 if _is_exact(output) else manifest.answer.tolerance
        found = _samples(output)
        where = f"output {port.name}, code versions {version}"
        wanted = np.array([np.nan if value is None else value for value in expected.values])
        scale = _largest_of(wanted) if expected.largest is None else expected.largest
        errors = np.where(np.isnan(wanted), 0.0, _errors(found, wanted, scale))
        wrong = np.flatnonzero(~(errors <= allowed))
        if wrong.size:
            at = int(wrong[0])
            return (
                f"{where}: found {found[at]:.6g} at position {positions(output.size)[at]}, expected {wanted[at]:.6g} "
                f"(allowed: {allowed:g} of the largest value, {scale:.6g})"
            )
        size = _largest(output)
        if expected.largest is not None and not abs(size - expected.largest) <= allowed * expected.largest:
            return f"{where}: the largest value found is {size:.6g}, expected {expected.largest:.6g}"
    return ""


def _is_exact(output: NDArray[Any]) -> bool:
    return output.dtype.kind in "biu" and output.dtype != np.uint16


def _samples(output: NDArray[Any]) -> NDArray[np.float64]:
    return as_numbers(output.reshape(-1)[positions(output.size)])


def _largest(output: NDArray[Any]) -> float:
    return _largest_of(as_numbers(output))


def _largest_of(numbers: NDArray[np.float64]) -> float:
    """The greatest magnitude, of those that stand for themselves."""
    size = np.where(np.isfinite(numbers), np.abs(numbers), 0.0)
    return float(size.max(initial=0.0, where=size < HUGE))


def _errors(found: NDArray[np.float64], expected: NDArray[np.float64], largest: float) -> NDArray[np.float64]:
    """Differences relative to the largest magnitude; of huge values, to their own."""
    size = np.abs(expected)
    with np.errstate(invalid="ignore"):
        difference = np.where(found == expected, 0.0, np.abs(found - expected))
        return difference / np.where(size < HUGE, max(largest, 1e-30), size)


def _draw(port: Port, bits: np.random.PCG64) -> NDArray[Any] | Strings:
    shape, kind = port.at(1), np.dtype(port.dtype).kind if port.dtype != "string" else "S"
    if kind == "S":
        return _draw_texts(port, prod(shape), bits)
    raw = bits.random_raw(prod(shape))
    if kind == "f":
        values: NDArray[Any] = _normal(raw)
    elif kind == "b":
        values = raw >> np.uint64(63)
    elif port.locations:
        # Small ones hit the rows of tables and the words of vocabularies, large ones what is unknown.
        limited = raw & np.uint64((1 << RAW_ID_BITS) - 1)
        values = limited >> (raw >> np.uint64(RAW_ID_BITS)) % np.uint64(RAW_ID_BITS + 1)
    else:
        low, high = _id_range(port)
        span = high - low + 1
        values = raw % np.uint64(span) if span < 1 << 64 else raw
        values = (values + np.uint64(low % (1 << 64))).view(np.int64)  # modulo 2^64, so also from negative numbers on
    return values.astype(port.dtype).reshape(shape)


def _id_range(port: Port) -> tuple[int, int]:
    """The least and greatest value to draw: of half a range only its end is known to be valid."""
    if port.low is None and port.high is None:
        return 0, 1
    low = port.high if port.low is None else port.low
    high = port.low if port.high is None else port.high
    assert low is not None and high is not None
    return low, high


def _normal(raw: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Numbers of mean 0 and variance 1: of each word the sum of its four parts of 16 bits, shifted and scaled.

    >>> _normal(np.array([0, 2**64 - 1], np.uint64)).round(3).tolist()
    [-3.464, 3.464]
    """
    parts = (raw[:, None] >> np.array([0, 16, 32, 48], np.uint64)) & np.uint64(0xFFFF)
    numbers: NDArray[np.float64] = (parts.sum(axis=1).astype(np.float64) - 2 * 0xFFFF) / 0xFFFF * np.sqrt(3.0)
    return numbers


def _draw_texts(port: Port, count: int, bits: np.random.PCG64) -> Strings:
    most = max(min(port.max_bytes // port.shape[1], MOST_TEXT_BYTES), 1)
    texts = []
    for _ in range(count):
        number = int(bits.random_raw())
        words = [str(int(word) >> int(word) % 64) for word in bits.random_raw(number % 8 + 1)]
        raw = (port.separator or " ").join(words).encode()[: number // 8 % most + 1]
        texts.append(raw.decode(errors="ignore").encode())  # the cut may lie within a character of the separator
    return Strings.from_values(texts)
