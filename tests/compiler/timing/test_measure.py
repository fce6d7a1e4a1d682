from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.graph.layer_spec import Activation, Halo, Kernel, LayerSpec
from veltair.compiler.shared_library import ObjectFile, compile_objects, link_library
from veltair.compiler.timing import measuring_process
from veltair.compiler.timing.measure import (
    CandidateError,
    Meter,
    in_file,
    input_operands,
    interior_slices,
    write_chunks,
)
from veltair.compiler.timing.measuring_messages import FileTensor, InlineTensor, OutputTensor, RandomTensor, TimeKernel
from veltair.machine.isa import tvm_target
from veltair.machine.topology import usable_machine

X = Activation("x", "float32", (-1, 8))
ADD = np.arange(8, dtype=np.float32)


def body_add(x: Any, w: Any, y: Any) -> None:
    with T.parallel(0, x.shape[0]) as row, T.serial(0, 8) as i:
        T.buffer_store(y, x[row, i] + w[i], [row, i])


def body_of(call: str) -> Any:
    def body(x: Any, w: Any, y: Any) -> None:
        T.evaluate(T.call_extern("int32", call))
        body_add(x, w, y)

    return body


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kernels "add" (x + w), "crash" (aborts) and "hang" (waits for a signal)."""
    folder = tmp_path_factory.mktemp("library")
    bodies = {"add": body_add, "crash": body_of("abort"), "hang": body_of("pause")}
    sources = [
        ObjectFile(build_prim_func([X, ADD, X], body), name, folder / f"{name}.o") for name, body in bodies.items()
    ]
    assert compile_objects(sources, tvm_target()) == ["", "", ""]
    link_library([source.path for source in sources], folder / "kernels.so")
    return folder / "kernels.so"


@pytest.fixture(scope="module")
def meter() -> Iterator[Meter]:
    with Meter(usable_machine().cores) as meter:
        yield meter


def operands(rows: int = 3) -> list[InlineTensor | OutputTensor]:
    x = np.arange(rows * 8, dtype=np.float32)
    return [
        InlineTensor("float32", (rows, 8), x.tobytes()),
        InlineTensor("float32", (8,), ADD.tobytes()),
        OutputTensor("float32", (rows, 8)),
    ]


def test_a_call_gives_the_results_on_any_core_count(meter: Meter, library: Path) -> None:
    for count in range(1, len(meter.cores) + 1):
        (result,) = meter.call(library, "add", operands(5), count)
        np.testing.assert_array_equal(result, np.arange(40, dtype=np.float32).reshape(5, 8) + ADD)


def test_a_time_for_each_core_count_asked_for(meter: Meter, library: Path) -> None:
    everywhere = meter.time(library, "add", operands(), budget_ns=100_000)
    assert len(everywhere) == len(meter.cores)
    assert all(ns > 0 for ns in everywhere)
    assert len(meter.time(library, "add", operands(), counts=[1], budget_ns=100_000)) == 1


@pytest.mark.parametrize("wrong", [operands()[:2], operands(3)[:1] + operands(4)[1:]], ids=["too few", "other shapes"])
def test_a_kernel_that_refuses_its_tensors_fails_with_its_words(meter: Meter, library: Path, wrong: list[Any]) -> None:
    with pytest.raises(CandidateError, match=r"add: .*(argument|shape)"):
        meter.time(library, "add", wrong)


def test_a_symbol_that_is_not_there_fails(meter: Meter, library: Path) -> None:
    with pytest.raises(CandidateError, match="nothing"):
        meter.time(library, "nothing", operands())


def test_a_crash_costs_the_candidate_alone(meter: Meter, library: Path) -> None:
    with pytest.raises(CandidateError, match="crash: killed by SIGABRT"):
        meter.time(library, "crash", operands())
    (result,) = meter.call(library, "add", operands(1), 1)
    assert result.shape == (1, 8)


def test_a_candidate_that_hangs_is_given_up(library: Path) -> None:
    with Meter(usable_machine().cores, patience_s=20) as warm:
        warm.call(library, "add", operands(), 1)  # the process is up
        warm.patience_s = 0.5
        with pytest.raises(CandidateError, match=r"hang: no result within 0\.5 s"):
            warm.call(library, "hang", operands(), 1)
        warm.patience_s = 60
        assert warm.call(library, "add", operands(), 1)


def test_the_process_ends_with_its_meter(library: Path) -> None:
    with Meter(usable_machine().cores) as meter:
        meter.call(library, "add", operands(), 1)
        process = meter._process
        assert process is not None
        assert process.poll() is None
    assert process.poll() is not None


def test_large_weights_go_by_file_equal_ones_once(meter: Meter, library: Path) -> None:
    large = np.arange(100_000, dtype=np.float32)
    kernel = Kernel(None, (large, ADD, large.copy()), 0, 0)
    first, small, twin = meter.weights(kernel)
    assert isinstance(first, FileTensor)
    assert first == twin
    assert isinstance(small, InlineTensor)
    np.testing.assert_array_equal(np.fromfile(first.path, np.float32), large)
    meter.forget()
    assert not Path(first.path).exists()


def test_weights_in_a_file_reach_the_kernel(meter: Meter, library: Path, tmp_path: Path) -> None:
    for offset in (0, 4, 4096, 8192 + 64):  # aligned to 64 bytes or not
        path = tmp_path / f"weights{offset}"
        path.write_bytes(b"\0" * offset + ADD.tobytes())
        tensors = operands()
        tensors[1] = FileTensor("float32", (8,), str(path), offset)
        (result,) = meter.call(library, "add", tensors, 1)
        np.testing.assert_array_equal(result, np.arange(24, dtype=np.float32).reshape(3, 8) + ADD)


def test_a_view_of_a_mapped_file_is_found_in_it(tmp_path: Path) -> None:
    path = tmp_path / "table"
    np.arange(1000, dtype=np.float32).tofile(path)
    mapped = np.memmap(path, np.float32, mode="r", offset=400, shape=(50, 18))
    rows = np.asarray(mapped)[10:20]
    found = in_file(rows)
    assert found == FileTensor("float32", (10, 18), str(path), 400 + 10 * 18 * 4)
    np.testing.assert_array_equal(np.fromfile(path, np.float32, 180, offset=found.offset).reshape(10, 18), rows)
    assert in_file(np.asarray(mapped)[:, 3:5]) is None  # not contiguous
    assert in_file(np.array(mapped)) is None  # a copy
    assert in_file(np.ones(3)) is None


def test_chunks_are_the_row_major_bytes(tmp_path: Path) -> None:
    array = np.arange(1000, dtype=np.int16).reshape(10, 100).T
    with (tmp_path / "out").open("wb") as file:
        write_chunks(array, file, chunk=77)
    assert (tmp_path / "out").read_bytes() == array.tobytes()


def test_inputs_are_random_inside_the_halo_and_ids_in_their_bounds() -> None:
    blocked = Activation("a", "float32", (-1, 20, 5, 6), 16, Halo(1, 2, 3, 4))
    ids, loose = Activation("ids", "int64", (-1, 7)), Activation("loose", "int64", (-1, 7))
    assert blocked.at(2) == (2, 2, 9, 12, 16)
    assert interior_slices(blocked, 2) == (slice(0, 2), slice(0, 2), slice(1, 6), slice(2, 8), slice(0, 16))
    spec = LayerSpec("l", "op", (blocked, ids, loose), (), {}, 0, max_batch=4)
    first, second, third = input_operands(spec, 2, {"ids": (3, 9)})
    assert first == RandomTensor("float32", (2, 2, 9, 12, 16), ((0, 2), (0, 2), (1, 6), (2, 8), (0, 16)))
    assert second == RandomTensor("int64", (2, 7), ((0, 2), (0, 7)), 3, 9)
    assert third == RandomTensor("int64", (2, 7), ((0, 2), (0, 7)), 0, 0)


def test_random_tensors_keep_their_halo_and_bounds(meter: Meter, tmp_path: Path) -> None:
    """A kernel that copies what it was given shows what the other process made."""
    shape = (1, 1, 4, 5, 16)
    grid = Activation("g", "float32", shape)
    ids = Activation("i", "int64", (50,))

    def body(g: Any, i: Any, g_out: Any, i_out: Any) -> None:
        with T.grid(*shape) as index:
            T.buffer_store(g_out, g[tuple(index)], list(index))
        with T.serial(0, 50) as at:
            T.buffer_store(i_out, i[at], [at])

    source = ObjectFile(build_prim_func([grid, ids, grid, ids], body), "copy", tmp_path / "copy.o")
    assert compile_objects([source], tvm_target()) == [""]
    link_library([source.path], tmp_path / "copy.so")
    region = ((0, 1), (0, 1), (1, 3), (1, 4), (0, 16))
    given = [RandomTensor("float32", shape, region), RandomTensor("int64", (50,), ((0, 50),), -2, 2)]
    results = [OutputTensor("float32", shape), OutputTensor("int64", (50,))]
    for _ in range(3):  # the first leaves its numbers in the memory of those that follow
        plane, numbers = meter.call(tmp_path / "copy.so", "copy", [*given, *results], 1)
        inside = plane[:, :, 1:3, 1:4]
        assert (inside != 0).all()
        assert np.count_nonzero(plane) == inside.size
        assert set(numbers.tolist()) == {-2, -1, 0, 1, 2}


@pytest.mark.parametrize(
    ("run_ms", "fewest", "budget_ms", "limit_ms", "median_ms"),
    [
        ([9, 1, 2, 3], 3, 0, 0, 2),  # the first run warms up
        ([20, 12, 11], 3, 0, 0, 12),  # and counts where it is long
        ([30], 1, 2, 0, 30),
        ([9, 1, 1, 2, 2, 2], 1, 8, 0, 2),  # the budget asks for more
        ([15, 14, 13], 5, 1, 0, 14),  # three of a kernel that takes long, whatever was asked for
        ([9, 6, 5, 4], 5, 1000, 3, 5),  # above the limit
    ],
)
def test_runs_end_when_they_are_enough(
    monkeypatch: pytest.MonkeyPatch, run_ms: list[int], fewest: int, budget_ms: int, limit_ms: int, median_ms: int
) -> None:
    clock = 0
    left = [ms * 1_000_000 for ms in run_ms]

    def run(counted: int) -> int:
        nonlocal clock
        clock += left[0]
        return left.pop(0)

    monkeypatch.setattr(measuring_process, "time", SimpleNamespace(perf_counter_ns=lambda: clock))
    request = TimeKernel("k.so", "k", (), (1,), fewest, budget_ms * 1_000_000, limit_ms * 1_000_000, 0)
    assert measuring_process.median_ns(run, request) == median_ms * 1_000_000
    assert not left
