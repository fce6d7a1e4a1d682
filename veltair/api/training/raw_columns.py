"""Raw features for training from arrays and lists, without Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from veltair.errors import DataError
from veltair.profiles.artifact.strings import Strings

if TYPE_CHECKING:
    from veltair.compiler.features.feature_description import Feature

LARGEST_ID = (1 << 63) - 1


def raw_columns(given: Mapping[str, Any], features: Sequence[Feature], where: str = "") -> dict[str, Any]:
    """The features as kernels read them: int64 or float32 (rows, width), or `Strings`.

    Args:
        given: by name: numbers in an array or in lists, texts as `Strings` or in a list of str and bytes.
        where: what the data are, before each message.

    Raises DataError that names the column.
    """
    found = {}
    for feature in features:
        here = f"{where}column {feature.name!r}"
        if feature.name not in given:
            raise DataError(f"{here} is missing")
        value = given[feature.name]
        found[feature.name] = _texts(value, feature, here) if feature.is_text else to_numbers(value, feature, here)
    return found


def rows_to_columns(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, list[Any]]:
    """Rows, each a mapping, as columns. Raises DataError for a row that lacks one."""
    for place, row in enumerate(rows):
        if lacking := next((name for name in names if name not in row), None):
            raise DataError(f"row {place}: column {lacking!r} is missing")
    return {name: [row[name] for row in rows] for name in names}


def to_numbers(value: Any, feature: Feature, where: str) -> NDArray[Any]:
    """Numbers as int64 or float32 (rows, width); those that are so already are not copied."""
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        raise DataError(f"{where}: expected rows of {feature.width} numbers each") from None
    wanted, kinds = (np.int64, "iu") if feature.kind == "int" else (np.float32, "iuf")
    if array.dtype.kind not in kinds and array.size:
        raise DataError(
            f"{where}: expected {np.dtype(wanted)}, got {'texts' if array.dtype.kind in 'OSU' else array.dtype}"
        )
    if array.dtype == np.uint64 and wanted is np.int64 and array.max(initial=0) > LARGEST_ID:
        row = int(np.flatnonzero(array.reshape(len(array), -1).max(axis=1) > LARGEST_ID)[0])
        raise DataError(f"{where}: row {row}: an id beyond 2**63 - 1")
    if array.shape not in ((len(array), feature.width), (len(array),) if feature.width == 1 else None):
        raise DataError(f"{where}: expected [rows, {feature.width}], got {list(array.shape)}")
    with np.errstate(over="ignore"):  # beyond float32 is infinite, as for whoever asks a server
        return np.ascontiguousarray(array.reshape(-1, feature.width), wanted)


def _texts(value: Any, feature: Feature, where: str) -> Strings:
    if isinstance(value, Strings):
        return value
    width = feature.width
    many = "one text" if width == 1 else f"{width} texts"
    if isinstance(value, np.ndarray):
        shapes = ((len(value), width), (len(value),) if width == 1 else None) if value.ndim else ()
        if value.dtype.kind not in "OSU" or value.shape not in shapes:
            raise DataError(f"{where}: expected {many} a row, got {value.dtype} {list(value.shape)}")
        members = value.reshape(-1).tolist()
    elif not isinstance(value, Iterable):
        raise DataError(f"{where}: expected {many} a row, got {type(value).__name__}")
    elif width == 1:
        members = list(value)
    else:
        for row, texts in enumerate(value):
            if not isinstance(texts, list | tuple | np.ndarray) or len(texts) != width:
                raise DataError(f"{where}: row {row}: expected {many}, got {texts!r:.80}")
        members = [text for texts in value for text in texts]
    for place, member in enumerate(members):
        if not isinstance(member, str | bytes):
            raise DataError(f"{where}: row {place // width}: expected a text, got {type(member).__name__}")
    return Strings.from_values(members)
