"""What each of RECom's steps gains for the columns of `bench.recsys.columns` (RECom 7.5).

    python -m bench.recsys.column_ablations [--json FILE]

RECom's E, 1,000 columns to (B, 8120), on packed features and two threads, with one step left out at a time, then with
all of them left out:

- safety: the indices of each column are checked against its table, and those below zero removed, as TensorFlow's
  columns do, though hashes and boundaries give none (5.1);
- reductions: a column of one value a row adds up its values, as if there could be several (5.2);
- fused: each column is a kernel of its own, and the results are concatenated (3.1);
- merged: features lie in a buffer each and are gathered first, as TensorFlow's are (3.1.4, 3.3). A kernel has no other
  buffers: what lies between two steps is in registers or in a tile's own memory.

All outputs are equal. Times are medians of alternate runs. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import tvm_ffi
from msgspec.structs import replace as replace_fields
from numpy.typing import NDArray

from bench.paths import RESULTS, result_path
from bench.recsys.columns import description_of
from bench.recsys.feature_columns import COLUMN_SETS, THREADS, raw_features, tables, timed
from veltair.compiler.features.feature_description import (
    ColumnInput,
    Feature,
    FeatureColumn,
    FeatureDescription,
    IndexGuard,
)
from veltair.compiler.features.feature_layout import FeatureLayout, buffer_of
from veltair.compiler.features.kernel import column_table, slot_writer
from veltair.compiler.features.kernel.code_path import CodePath, Combination, ValueKind, code_path
from veltair.compiler.features.kernel.columns_kernel import ColumnsSpace, columns_layer
from veltair.compiler.features.table_store import TableStore
from veltair.compiler.shared_library import compile_function
from veltair.machine.environment import describe_environment
from veltair.machine.isa import cpu_features, tvm_target
from veltair.profiles.artifact.input_layout import InputLayout
from veltair.profiles.artifact.strings import Strings
from veltair.profiles.runtime.executor import aligned_copy, aligned_zeros

CHOSEN = COLUMN_SETS["recom-e"]
POINT = {"rows": 256, "columns": 128, "along": "columns", "ahead": 0}
STEPS = ("safety", "reductions", "fused", "merged")
ROUNDS, TURN_S = 5, 0.3
Run = Callable[[], NDArray[Any]]


@contextmanager
def without(steps: Sequence[str]) -> Iterator[None]:
    """The compiler without some of the steps that it takes for each column."""
    with ExitStack() as changed:
        if "reductions" in steps:
            changed.enter_context(patch.object(column_table, "code_path", path_with_reduction))
        if "safety" in steps:
            changed.enter_context(patch.object(slot_writer, "simplify_steps", tuple))
            changed.enter_context(patch.object(slot_writer, "proves_in_bounds", lambda steps, rows: False))
        yield


def path_with_reduction(column: FeatureColumn, feature: Feature) -> CodePath:
    """The code of a column as if each row could have several values."""
    path = code_path(column, feature)
    kind = ValueKind.FLOATS if path.kind is ValueKind.FLOAT else path.kind
    return replace(path, kind=kind, combination=Combination.MANY) if path.copies_rows else path


class Features:
    """The raw features of a batch, each in an array of its own and packed."""

    def __init__(self, description: FeatureDescription, batch: int) -> None:
        layout = FeatureLayout.from_description(description)
        self._layout, self._batch = InputLayout.of(layout), batch
        given = {
            n: Strings.from_values(v) if isinstance(v, list) else v for n, v in raw_features(CHOSEN, batch).items()
        }
        self._each = {port.name: self._in_shape(given[port.name], port.at(batch)) for port in layout.inputs}
        arrays = [aligned_zeros(port.at(batch), port.dtype) for port in layout.packed_buffers]
        self._arrays = arrays
        self.packed = {
            buffer_of(p.name): tvm_ffi.from_dlpack(a) for p, a in zip(layout.packed_buffers, arrays, strict=True)
        }
        self.pack()

    def pack(self) -> None:
        self._layout.fill(self._arrays, self._each, self._batch)

    @staticmethod
    def _in_shape(value: NDArray[Any] | Strings, shape: tuple[int, ...]) -> NDArray[Any] | Strings:
        return value if isinstance(value, Strings) else value.reshape(shape)


class Columns:
    """All columns without some of the steps, compiled; kernels that differ in nothing but their numbers are one."""

    def __init__(self, description: FeatureDescription, store: TableStore, left_out: Sequence[str]) -> None:
        joined, self._left_out = description.inputs[0], left_out
        self._width = sum(description.width_of(column) for column in description.columns)
        groups = [joined]
        if "fused" in left_out:
            groups = [ColumnInput(name=f"{joined.name}.{name}", columns=(name,)) for name in joined.columns]
        built: dict[str, Any] = {}
        rows = tvm_ffi.from_dlpack(store.rows)  # of all tables, which all kernels read
        self._calls = []
        with without(left_out):
            for group in groups:
                spec = columns_layer(description, group, max(CHOSEN.batches), store)
                kernel = ColumnsSpace().build(spec, POINT, cpu_features())
                code = kernel.function.script()
                if code not in built:
                    built[code] = compile_function(kernel.function, "main", tvm_target())["main"]
                weights = [tvm_ffi.from_dlpack(weight) for weight in map(aligned_copy, kernel.weights[:-1])]
                weights.append(rows)
                self._calls.append(
                    (built[code], [buffer_of(t.name) for t in spec.inputs], weights, spec.outputs[0].shape[1])
                )
        self.kernels = len(groups)

    def at(self, batch: int, features: Features) -> Run:
        outputs = [aligned_zeros((batch, width), "float32") for *_, width in self._calls]
        calls = [
            (function, [*(features.packed[name] for name in names), *weights, tvm_ffi.from_dlpack(output)])
            for (function, names, weights, _), output in zip(self._calls, outputs, strict=True)
        ]
        whole = outputs[0] if len(outputs) == 1 else aligned_zeros((batch, self._width), "float32")

        def run() -> NDArray[Any]:
            if "merged" in self._left_out:
                features.pack()
            for function, operands in calls:
                function(*operands)
            if len(outputs) > 1:
                np.concatenate(outputs, 1, out=whole)
            return whole

        return run


def guarded_description() -> FeatureDescription:
    """The columns as TensorFlow's `embedding_column` has them: indices below zero are removed."""
    found: FeatureDescription = description_of(CHOSEN)
    guards = (IndexGuard(remove=(0, (1 << 31) - 1)),)
    return replace_fields(found, columns=tuple(replace_fields(column, guards=guards) for column in found.columns))


def measure(kinds: Mapping[str, Columns], description: FeatureDescription) -> list[dict[str, Any]]:
    """A row for each batch size: medians in ms by what is left out."""
    rows = []
    for batch in CHOSEN.batches:
        features = Features(description, batch)
        runs = {name: columns.at(batch, features) for name, columns in kinds.items()}
        expected = runs["nothing"]().copy()
        for name, run in runs.items():
            if not np.array_equal(run(), expected):
                raise SystemExit(f"without {name}: other outputs")
        turns = [{name: timed(run, TURN_S) for name, run in runs.items()} for _ in range(ROUNDS)]
        rows.append(
            {"batch": batch, "ms": {name: round(float(np.median([t[name] for t in turns])), 4) for name in runs}}
        )
        print(batch, *(f"{name} {ms:.3f}" for name, ms in rows[-1]["ms"].items()), flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=result_path, default=RESULTS / "column-ablations.json")
    options = parser.parse_args()
    environment = asdict(describe_environment())  # before TVM's pool pins this thread
    os.environ.setdefault("TVM_NUM_THREADS", str(THREADS))
    description = guarded_description()
    store = TableStore.load(description, tables(CHOSEN))
    kinds = {"nothing": Columns(description, store, ())}
    kinds |= {step: Columns(description, store, (step,)) for step in STEPS}
    kinds["all"] = Columns(description, store, STEPS)
    found = {"kernels": {name: columns.kernels for name, columns in kinds.items()}}
    found |= {"rows": measure(kinds, description), "environment": environment}
    options.json.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
