"""Helpers of the tests: columns compiled to one kernel and run, and raw features for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi
from numpy.typing import NDArray

from veltair.compiler.embedding.table_storage import TableStorage
from veltair.compiler.features.description_file import parse_description
from veltair.compiler.features.feature_description import FeatureDescription
from veltair.compiler.features.feature_layout import buffer_of
from veltair.compiler.features.kernel.columns_kernel import ColumnsSpace, columns_layer
from veltair.compiler.features.random_features import pack_features
from veltair.compiler.features.table_store import TableStore
from veltair.compiler.graph.layer_spec import LayerSpec, Point
from veltair.compiler.shared_library import compile_function
from veltair.machine.isa import cpu_features, tvm_target
from veltair.profiles.artifact.manifest import Storage
from veltair.profiles.artifact.strings import Strings
from veltair.profiles.runtime.executor import aligned_copy, aligned_zeros

WORDS = [b"a", b"bc", b"d", b"", b"longer than eight", b"a\0b", b"\xff\xfe\x80", "Größe".encode()]
NUMBERS = [b"1.5", b"-2e1", b"abc", b"", b".5", b" 7. ", b"1e", b"-", b"12345678901234567890", b"1E-3", b"nan", b"+4"]


def make_description(
    features: Sequence[Mapping[str, Any]], columns: Sequence[Mapping[str, Any]], **shapes: Any
) -> FeatureDescription:
    """Columns joined in their order by one input; `shapes`: a seeded table (rows, dim) by name."""
    tables = [{"name": name, "rows": r, "dim": d, "seed": place} for place, (name, (r, d)) in enumerate(shapes.items())]
    names = [column.get("name", column["feature"]) for column in columns]
    raw = {
        "features": [dict(feature) for feature in features],
        "columns": [dict(column) for column in columns],
        "tables": tables,
        "inputs": [{"name": "x", "columns": names}],
    }
    return parse_description(raw, Path("features.toml"))


class CompiledColumns:
    """One point's kernel of a description's first input; `changed`: its layer as another one."""

    def __init__(
        self,
        description: FeatureDescription,
        point: Point,
        isa: frozenset[str] | None = None,
        mcpu: str = "",
        tables: Mapping[str, NDArray[np.float32]] | None = None,
        max_batch: int = 256,
        storage: Storage = "fp32",
        dtype: str = "float32",
        changed: Callable[[LayerSpec], LayerSpec] = lambda spec: spec,
    ) -> None:
        self.description, self.joined = description, description.inputs[0]
        self.store = TableStore.load(description, tables, TableStorage(storage))
        made = columns_layer(description, self.joined, max_batch, self.store, dtype)
        self.spec = changed(made)
        kernel = ColumnsSpace().build(self.spec, point, isa or cpu_features())
        target = tvm_target() | ({"mcpu": mcpu} if mcpu else {})
        self.library = compile_function(kernel.function, "main", target)
        self.weights = [aligned_copy(weight) for weight in kernel.weights]
        self.names = [buffer_of(tensor.name) for tensor in made.inputs]

    def __call__(self, raw: Mapping[str, Any], batch: int) -> NDArray[Any]:
        return self.run([aligned_copy(array) for array in self.arrays(raw, batch)], batch)

    def arrays(self, raw: Mapping[str, Any], batch: int) -> list[NDArray[Any]]:
        """The banks in the kernel's order; texts may be given as lists of bytes."""
        values = {name: Strings.from_values(value) if isinstance(value, list) else value for name, value in raw.items()}
        found = pack_features(self.description, values, batch)
        return [found[name] for name in self.names]

    def run(self, arrays: Sequence[NDArray[Any]], batch: int) -> NDArray[Any]:
        (made,) = self.spec.outputs
        out = aligned_zeros((batch, made.shape[1]), made.dtype)
        out[...] = np.nan if made.dtype == "float32" else np.array(-99).astype(made.dtype)
        self.library["main"](*[tvm_ffi.from_dlpack(a) for a in (*arrays, *self.weights, out)])
        return out


def texts(
    chance: np.random.Generator, batch: int, separator: bytes = b"", words: Sequence[bytes] = WORDS
) -> list[bytes]:
    """Up to eight words a row, some of them random bytes of any length class."""
    found = []
    for _ in range(batch):
        row = [words[i] for i in chance.integers(len(words), size=chance.integers(0, 9))]
        if words is WORDS and row:
            noise = chance.bytes(int(chance.integers(0, 200)))
            row[0] = noise.replace(separator, b"") if separator else noise
        found.append(separator.join(row))
    return found
