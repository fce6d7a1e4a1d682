"""Feature columns of a description as a function of a batch: what a model in training looks up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tvm_ffi
from numpy.typing import NDArray

from veltair.compiler.features.feature_description import CHARACTERS, Feature, FeatureDescription, feature_of
from veltair.compiler.features.feature_layout import FeatureLayout
from veltair.compiler.features.training.training_kernel import (
    OUTPUTS,
    KernelCode,
    build_training_kernel,
    constants_of,
    kernel_code,
)
from veltair.compiler.features.training.training_parts import TrainingForm, TrainingPart, form_of, training_parts
from veltair.compiler.shared_library import compile_function
from veltair.errors import DataError
from veltair.machine.isa import ISAS, cpu_features, tvm_target
from veltair.machine.topology import usable_machine
from veltair.profiles.artifact.strings import MOST_BYTES, Strings
from veltair.profiles.runtime.executor import aligned_copy, writable_view

MOST_IDS = (1 << 31) - 1  # of a part in one batch: kernels count in int32
RawColumns: TypeAlias = Mapping[str, NDArray[Any] | Strings]


class Bag(NamedTuple):
    """Ids of each row of a batch, as `torch.nn.EmbeddingBag(include_last_offset=True)` takes them.

    >>> Bag(np.array([7, 1, 4]), np.array([0, 2, 2, 3])).row(0)
    array([7, 1])
    """

    ids: NDArray[np.int64]  # of all rows, row after row
    offsets: NDArray[np.int64]  # (batch + 1,): row i has ids[offsets[i]:offsets[i + 1]]

    def row(self, index: int) -> NDArray[np.int64]:
        """The ids of one row."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]


ColumnValues: TypeAlias = Bag | NDArray[Any]


class _CompiledPart:
    """A part with its kernel and its constants in memory. ::

    _CompiledPart(part, isa)({"user": users}, batch=4096)["user"]
    """

    def __init__(self, part: TrainingPart, isa: frozenset[str]) -> None:
        self.part = part
        self._kernel = _kernels[kernel_code(part, isa)]
        self._constants = [tvm_ffi.from_dlpack(aligned_copy(array)) for array in constants_of(part).values()]
        self._features = {column.name: feature_of(column, part.features) for column in part.columns}

    def __call__(self, raw: RawColumns, batch: int) -> dict[str, ColumnValues]:
        part, names = self.part, self.part.table.names
        ints = [np.asarray(raw[f.name]).reshape(-1) for f in part.features if f.kind == "int"]
        floats = [np.asarray(raw[f.name]).reshape(-1) for f in part.features if f.kind in ("float", "dense")]
        texts = [text for f in part.features if isinstance(text := raw[f.name], Strings)]
        offsets, data = _side_by_side(texts)
        operands = [_joined(ints, np.int64), _joined(floats, np.float32), offsets, data]
        if part.form is not TrainingForm.BAG:
            dtype = OUTPUTS[part.form]["out"][0]
            out = np.empty((batch, sum(part.widths)), dtype)
            if batch:
                self._run(operands, [out])
            starts = np.cumsum((0, *part.widths))
            return {name: out[:, starts[i] : starts[i + 1]] for i, name in enumerate(names)}
        most = [_most_ids(self._features[name], raw, batch) for name in names]
        bases = np.cumsum((0, *most))
        if bases[-1] > MOST_IDS:
            raise DataError(f"{', '.join(f.name for f in part.features)}: {bases[-1]} values in a batch; halve it")
        ids, ends = np.empty(max(bases[-1], 1), np.int64), np.empty((len(names), batch + 1), np.int64)
        ends[:, 0] = 0
        self._run(operands, [bases[:-1], ids, ends])
        return {name: Bag(ids[bases[i] : bases[i] + ends[i, -1]], ends[i]) for i, name in enumerate(names)}

    def _run(self, raw: list[NDArray[Any]], outputs: list[NDArray[Any]]) -> None:
        given = [tvm_ffi.from_dlpack(_taken(array)) for array in raw]
        self._kernel(*given, *self._constants, *(tvm_ffi.from_dlpack(array) for array in outputs))


class FeatureTransform:
    """Turns raw features into what the columns of a description give to a model in training.

    A column with a table gives the ids of its rows, as a `Bag`, or, as a sequence, in places (batch, places) with -1
    where serving has zeros. Any other column gives what it gives when it is served: ids, lengths and masks (int64),
    numbers and values (float32), each (batch, width). All are numpy arrays, which export DLPack.

    Each call is on its own: it starts no threads, and may run in forked processes and in several threads. Pickled, it
    is compiled again where it arrives. ::

        transform = FeatureTransform(load_description(Path("model.features.toml")))
        found = transform({"user": np.array([[3], [7]]), "history": Strings.from_values([b"i1;i2", b""])})
        found["history"].ids, found["user"].offsets
    """

    def __init__(self, description: FeatureDescription) -> None:
        self.description = description
        layout = FeatureLayout.from_description(description)
        self.features: tuple[Feature, ...] = layout.features  # that some column reads
        isa = ISAS["avx512"] & cpu_features()
        parts = training_parts(description)
        _compile_kernels((kernel_code(part, isa) for part in parts), isa)
        self._parts = [_CompiledPart(part, isa) for part in parts]
        self._copied = [column for column in description.columns if form_of(column) is TrainingForm.VALUES]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.description,)

    def __call__(self, raw: RawColumns) -> dict[str, ColumnValues]:
        """What each column gives, by its name, in the order of the description.

        raw: of each feature, int64 or float32 (batch, width), or texts; each is read where it lies, except for numbers
            of several features and texts that a column joins, which are copied side by side.

        Raises DataError for a feature that is missing, of another type or another number of rows, and for texts whose
        offsets lie.
        """
        batch = self._check(raw)
        found: dict[str, ColumnValues] = {}
        for part in self._parts:
            found |= part(raw, batch)
        for column in self._copied:
            width = self.description.width_of(column)
            found[column.name] = np.array(raw[column.feature]).reshape(batch, width)  # Arrow's memory is read-only
        return {column.name: found[column.name] for column in self.description.columns}

    def _check(self, raw: RawColumns) -> int:
        """The rows of a batch."""
        batch = -1
        for feature in self.features:
            where, value = f"column {feature.name!r}", raw.get(feature.name)
            if value is None:
                raise DataError(f"{where} is missing")
            if feature.is_text:
                if not isinstance(value, Strings):
                    raise DataError(f"{where}: expected texts, got {value.dtype} {list(value.shape)}")
                _check_texts(value, where)
                if len(value) % feature.width:
                    raise DataError(f"{where}: expected {feature.width} texts a row, got {len(value)} in all")
                rows = len(value) // feature.width
            else:
                dtype = np.int64 if feature.kind == "int" else np.float32
                got = "texts" if isinstance(value, Strings) else f"{value.dtype} {list(value.shape)}"
                shapes = ((len(value), feature.width), (len(value),) if feature.width == 1 else None)
                if isinstance(value, Strings) or value.dtype != dtype or value.shape not in shapes:
                    raise DataError(f"{where}: expected {np.dtype(dtype)} [rows, {feature.width}], got {got}")
                rows = len(value)
            if batch not in (-1, rows):
                raise DataError(f"{where}: has {rows} rows, the columns before it {batch}")
            batch = rows
        return batch


_kernels: dict[KernelCode, Any] = {}  # that this process has compiled, for its own CPU


def _compile_kernels(codes: Iterable[KernelCode], isa: frozenset[str]) -> None:
    """Compiles what is new among these, on all cores: LLVM works outside of the interpreter lock."""
    functions = {code: build_training_kernel(code) for code in dict.fromkeys(codes) if code not in _kernels}
    with ThreadPoolExecutor(len(usable_machine().cores)) as pool:
        libraries = pool.map(lambda function: compile_function(function, "main", tvm_target(isa)), functions.values())
        _kernels.update((code, library["main"]) for code, library in zip(functions, libraries, strict=True))


def _check_texts(texts: Strings, where: str) -> None:
    """Raises DataError unless the offsets never fall and lie within the data."""
    offsets, data = texts.offsets, texts.data
    if data.dtype != np.uint8 or offsets.dtype != np.int32 or offsets.ndim != 1 or not offsets.size:
        raise DataError(f"{where}: expected uint8 data and int32 offsets, got {data.dtype} and {offsets.dtype}")
    if offsets[0] < 0:
        raise DataError(f"{where}: offsets begin at {offsets[0]}")
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if falls.size:
        raise DataError(f"{where}: offsets fall at row {falls[0]}")
    if offsets[-1] > data.size:
        row = int(np.flatnonzero(offsets > data.size)[0]) - 1
        raise DataError(f"{where}: row {max(row, 0)} ends at byte {offsets[row + 1]} of {data.size}")


def _most_ids(feature: Feature, raw: RawColumns, batch: int) -> int:
    """A bound for the ids of a feature's rows: where tokens are, one more than separators, and one for each row."""
    if feature.kind != "tokens":
        return batch * feature.width
    texts = raw[feature.name]
    assert isinstance(texts, Strings)  # checked
    text = texts.data[texts.offsets[0] : texts.offsets[-1]]
    if feature.separator == CHARACTERS:
        return text.size if feature.truncate is None else min(text.size, feature.truncate * batch)
    ends = text == ord(feature.separator) if feature.separator else (text == ord(" ")) | ((text >= 9) & (text <= 13))
    tokens = int(np.count_nonzero(ends)) + batch
    return tokens if feature.truncate is None else min(tokens, feature.truncate * batch)


def _side_by_side(texts: list[Strings]) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Offsets and bytes of all texts, text after text; those of a single one where they lie."""
    if len(texts) == 1:
        return texts[0].offsets, texts[0].data
    used = [text.data[text.offsets[0] : text.offsets[-1]] for text in texts]
    starts = np.cumsum([0, *(part.size for part in used)])
    if starts[-1] > MOST_BYTES:
        raise DataError(f"{starts[-1]} bytes of texts that a column joins; at most {MOST_BYTES} fit in a batch")
    offsets = [text.offsets - text.offsets[0] + np.int32(start) for text, start in zip(texts, starts, strict=False)]
    return (
        np.concatenate(offsets) if offsets else np.zeros(1, np.int32),
        np.concatenate(used) if used else np.zeros(1, np.uint8),
    )


def _joined(values: list[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    if len(values) == 1:
        return np.ascontiguousarray(values[0])
    return np.concatenate(values) if values else np.zeros(1, dtype)


def _taken(array: NDArray[Any]) -> NDArray[Any]:
    """The same memory as an array that TVM takes; kernels only read it."""
    array = np.ascontiguousarray(array)
    if not array.size:  # TVM takes no empty array
        return np.zeros(1, array.dtype)
    return array if array.flags.writeable else writable_view(array)
