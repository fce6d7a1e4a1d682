"""Raw features of a query merged into the few arrays that the kernel reads; what is wrong is refused here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.columns.description import Description, Feature, Joined
from veltair.compiler.columns.plan import layout
from veltair.errors import RequestError

MOST_BYTES = (1 << 31) - (1 << 12)  # of all texts of a query: places are int32


@dataclass(frozen=True, slots=True)
class Texts:
    """B strings as Arrow has them: bytes, and B + 1 offsets into them that never fall."""

    letters: NDArray[np.uint8]
    offsets: NDArray[np.int32]

    @classmethod
    def of(cls, strings: Sequence[bytes]) -> Texts:
        letters = np.frombuffer(b"".join(strings), np.uint8)
        return cls(letters, np.cumsum([0, *map(len, strings)]).astype(np.int32))


Values = NDArray[Any] | Texts


def merged(
    description: Description, joined: Joined, values: Mapping[str, Values], batch: int
) -> dict[str, NDArray[Any]]:
    """ints, floats, ends and bytes, those that there are, as `kernel.layer` wants them. Raises RequestError."""
    place = layout(description, joined)
    parts: dict[str, list[NDArray[Any]]] = {"ints": [], "floats": [], "ends": [], "bytes": []}
    written = 0
    for feature in description.features:
        if feature.name not in place.source:
            continue
        if feature.name not in values:
            raise RequestError(f"feature {feature.name!r} is missing")
        value = values[feature.name]
        if feature.textual:
            letters = checked(feature, value, batch)
            parts["ends"].append(letters.offsets[1:] + np.int32(written))
            parts["bytes"].append(letters.letters[: letters.offsets[-1]])
            written += int(letters.offsets[-1])
            if written > MOST_BYTES:
                raise RequestError(f"feature {feature.name!r}: the texts of a query are beyond {MOST_BYTES} bytes")
        else:
            kind = "ints" if feature.kind == "int" else "floats"
            parts[kind].append(_numbers(feature, value, batch))
    return {kind: np.concatenate(arrays) for kind, arrays in parts.items() if arrays}


def checked(feature: Feature, value: Values, batch: int) -> Texts:
    """Texts whose offsets start at 0, never fall and end within the bytes."""
    where = f"feature {feature.name!r}"
    if not isinstance(value, Texts):
        raise RequestError(f"{where}: expected {batch} strings")
    if value.offsets.shape != (batch + 1,) or value.offsets.dtype != np.int32 or value.letters.dtype != np.uint8:
        raise RequestError(f"{where}: expected bytes and {batch + 1} int32 offsets, got {value.offsets.shape}")
    falls = np.flatnonzero(value.offsets[1:] < value.offsets[:-1])
    if value.offsets[0] != 0 or falls.size:
        raise RequestError(f"{where}: offsets fall at row {int(falls[0]) if falls.size else 0}")
    if value.offsets[-1] > value.letters.size:
        raise RequestError(f"{where}: offsets end at {int(value.offsets[-1])} of {value.letters.size} bytes")
    return value


def _numbers(feature: Feature, value: Values, batch: int) -> NDArray[Any]:
    dtype = np.dtype("int64" if feature.kind == "int" else "float32")
    shape = (batch, feature.width)
    if isinstance(value, Texts) or value.dtype != dtype or value.size != batch * feature.width:
        got = "strings" if isinstance(value, Texts) else f"{value.dtype} {value.shape}"
        raise RequestError(f"feature {feature.name!r}: expected {dtype} {shape}, got {got}")
    return np.ascontiguousarray(value).reshape(-1)
