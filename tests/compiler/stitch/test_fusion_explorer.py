"""Random graphs of memory-intensive operators: every operator in exactly one kernel, no kernel waits for itself."""

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st

from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.shared_library import compile_function
from veltair.compiler.stitch import cost_models
from veltair.compiler.stitch.fusion_explorer import FusionExplorer
from veltair.compiler.stitch.iteration_space import SCHEMES, KernelSchedule, iteration_space
from veltair.compiler.stitch.operators.evaluate import evaluate_program
from veltair.compiler.stitch.stitch_program import Shape, StitchOp, broadcast_shapes, build_program
from veltair.compiler.stitch.stitched_kernel import stitched_function
from veltair.machine.isa import tvm_target
from veltair.machine.topology import usable_machine

UNARY = ("exp", "tanh", "neg", "abs", "sigmoid")
BINARY = ("add", "mul", "sub", "max")


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[StitchOp], dict[str, Shape], set[str]]:
    """Operators over a few leaves of one rank, their shapes, and which values others read."""
    extents = draw(st.tuples(*[st.integers(2, 20)] * 3))
    leaves = [tuple(draw(st.sampled_from([1, e])) for e in extents) for _ in range(draw(st.integers(1, 3)))]
    shapes: dict[str, Shape] = {f"x{i}": shape for i, shape in enumerate(leaves)}
    ops: list[StitchOp] = []
    for i in range(draw(st.integers(1, 10))):
        name, a = f"v{i}", draw(st.sampled_from(sorted(shapes)))
        kind = draw(st.sampled_from(["unary", "binary", "reduction"]))
        axes = tuple(axis for axis in draw(st.sampled_from([(-1,), (-2, -1), (-2,)])) if shapes[a][axis] > 1)
        if kind == "reduction" and axes:
            shape = tuple(1 if axis - 3 in axes else extent for axis, extent in enumerate(shapes[a]))
            op = StitchOp(name, draw(st.sampled_from(["reduce_sum", "reduce_max"])), (a,), shape, axes)
        elif kind == "binary":
            b = draw(st.sampled_from(sorted(shapes)))
            common = broadcast_shapes([shapes[a], shapes[b]])
            assert common is not None
            op = StitchOp(name, draw(st.sampled_from(BINARY)), (a, b), common)
        else:
            op = StitchOp(name, draw(st.sampled_from(UNARY)), (a,), shapes[a])
        ops.append(op)
        shapes[name] = op.shape
    read = {name for op in ops for name in op.operands}
    extra = draw(st.sets(st.sampled_from([op.output for op in ops]), max_size=2))
    return ops, shapes, {op.output for op in ops if op.output not in read} | extra


@settings(max_examples=60, deadline=None, derandomize=True)
@given(graphs())
def test_plans_cover_each_operator_once_and_can_run(graph: tuple[list[StitchOp], dict[str, Shape], set[str]]) -> None:
    ops, shapes, wanted = graph
    explorer = FusionExplorer(ops, shapes, wanted)
    groups = explorer.packed(explorer.plan())
    assert sorted(i for group in groups for pattern in group for i in pattern) == list(range(len(ops)))
    rng = np.random.default_rng(0)
    leaves = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items() if n.startswith("x")}
    known = dict(leaves)
    for group in groups:
        kernels = [explorer.program(pattern) for pattern in group]
        assert all(known.keys() >= kernel.leaves.keys() for kernel in kernels)  # before any of the group has run
        assert all(iteration_space(kernel) is not None for kernel in kernels)
        for kernel in kernels:
            known |= evaluate_program(kernel, {name: known[name] for name in kernel.leaves})
    whole = build_program(ops, shapes, wanted)
    with np.errstate(all="ignore"):
        for name, expected in evaluate_program(whole, {n: leaves[n] for n in whole.leaves}).items():
            np.testing.assert_allclose(known[name], expected, rtol=1e-3, atol=1e-3)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_a_pattern_is_cyclic_where_a_way_leads_out_of_it_and_back(data: st.DataObject) -> None:
    """Ways by other nodes (`outside`) count too; a direct one into the pattern is cyclic by itself."""
    count = data.draw(st.integers(2, 12))
    before = [data.draw(st.sets(st.integers(0, i - 1), max_size=2)) if i else set() for i in range(count)]
    outside = {
        i: frozenset(data.draw(st.sets(st.integers(0, i - 1), max_size=1)) if i else ()) - before[i]
        for i in range(count)
    }
    ops = [
        StitchOp(f"v{i}", "add", tuple(f"v{p}" for p in sorted(producers)) or ("x",), (4,))
        for i, producers in enumerate(before)
    ]
    explorer = FusionExplorer(ops, {"x": (4,)} | {op.output: (4,) for op in ops}, {ops[-1].output}, outside)
    pattern = frozenset(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))

    def leads_back(i: int, left: bool) -> bool:
        """Whether a way from the pattern's operator i, by producers, leaves the pattern and comes back."""
        for p in before[i] | outside[i]:
            if p in pattern:
                if left or p in outside[i]:
                    return True
            elif leads_back(p, True):
                return True
        return False

    assert explorer.is_cyclic(pattern) == any(leads_back(i, False) for i in pattern)


def test_ten_times_the_operators_are_ten_times_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted: what is scored, and what is asked of the machine."""
    asked: list[int] = []
    monkeypatch.setattr(cost_models, "usable_machine", lambda: asked.append(1) or usable_machine())
    cost_models._cores.cache_clear()

    def scored(count: int) -> int:
        names = ["x", *(f"v{i}" for i in range(count))]
        ops = [StitchOp(names[i + 1], UNARY[i % len(UNARY)], (names[i],), (2, 4)) for i in range(count)]
        explorer = FusionExplorer(ops, dict.fromkeys(names, (2, 4)), {names[-1]})
        explorer.plan()
        return len(explorer._scores)

    few, many = scored(200), scored(2000)
    assert many < 11 * few
    assert len(asked) <= 1


@settings(max_examples=25, deadline=None, derandomize=True)
@given(graphs(), st.sampled_from(SCHEMES), st.sampled_from([1, 3, 64]), st.sampled_from([1, 2, 4]))
def test_kernels_compute_what_numpy_does(
    graph: tuple[list[StitchOp], dict[str, Shape], set[str]], scheme: str, rows: int, unroll: int
) -> None:
    explorer = FusionExplorer(*graph)
    kernels = [explorer.program(pattern) for pattern in explorer.plan()]
    rng = np.random.default_rng(1)
    known = {n: rng.standard_normal(s).astype(np.float32) for n, s in graph[1].items() if n.startswith("x")}
    for kernel in kernels:
        space = iteration_space(kernel)
        assert space is not None
        names = [*kernel.leaves, *kernel.outputs]
        operands = [Activation(name, "float32", kernel.shapes[name]) for name in names]
        function = stitched_function([(space, KernelSchedule(rows, scheme, unroll))], operands, names)
        tensors = [tvm.runtime.tensor(known.get(n, np.zeros(kernel.shapes[n], np.float32))) for n in names]
        compile_function(function, "f", tvm_target())["f"](*tensors)
        expected = evaluate_program(kernel, {name: known[name] for name in kernel.leaves})
        for name, tensor in zip(names, tensors, strict=True):
            if name in expected:
                known[name] = tensor.numpy()
                scale = max(1.0, float(np.abs(expected[name]).max(initial=0.0, where=np.isfinite(expected[name]))))
                np.testing.assert_allclose(known[name], expected[name], rtol=1e-4, atol=1e-5 * scale)
