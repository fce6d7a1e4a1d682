"""Times and traffic against the rules of `veltair.machine.cache_traffic` and against what a machine cannot do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veltair.machine.cache_traffic import LoopLevel, traffic_bytes
from veltair.simulation.machine_model.layer_shapes import LayerShape, load_model_shape
from veltair.simulation.machine_model.machine_model import MachineModel, load_machine_model, machine_names
from veltair.simulation.machine_model.modelled_profiles import model_profiles
from veltair.simulation.machine_model.roofline import dram_bytes, kept_traffic, sharing_cores
from veltair.simulation.machine_model.tilings import TilingCandidates, enumerate_tilings

MACHINES = [load_machine_model(name) for name in machine_names()]
PAPERS = load_machine_model("threadripper-3990x")
RESNET = load_model_shape("resnet50").layers
CONV = next(
    s for s in RESNET if (s.m, s.n, s.k, s.inputs) == (196, 256, 2304, 14 * 14 * 256)
)  # 256 to 256 channels, 3x3 at 14x14


@st.composite
def shapes(draw: st.DrawFn) -> LayerShape:
    row, rows, n, k = (draw(st.integers(1, most)) for most in (60, 60, 600, 3000))
    groups, reach = draw(st.sampled_from([1, 1, 1, 16])), draw(st.sampled_from([0.0, 1.0, 2.0]))
    m = row * rows
    weights = draw(st.sampled_from([0, groups * n * k]))
    second = 0 if weights else groups * n * k
    flops, inputs, outputs = 2 * groups * m * n * k, m * k * groups, m * n * groups
    product = LayerShape("x", "conv2d", flops, inputs, weights, outputs, 0, second, m=m, n=n, k=k)
    return replace(product, groups=groups, row=row, reach=reach)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 1000)), min_size=1, max_size=6), st.integers(0, 400))
def test_kept_traffic_is_that_of_reuse(steps: list[tuple[int, int]], kept: int) -> None:
    need, moved, levels = 0, sum(step for _, step in steps) + 10, []
    for wider, less in steps:
        need, moved = need + wider, moved - less
        levels.append(LoopLevel(0, need, moved))
    arrays = (np.array([[getattr(level, key)] for level in levels], float) for key in ("shared_bytes", "traffic_bytes"))
    assert kept_traffic(*arrays, kept) == pytest.approx(traffic_bytes(levels, 1, kept))


@settings(max_examples=30, deadline=None)
@given(shapes(), st.sampled_from(MACHINES))
def test_what_no_code_can_do(shape: LayerShape, machine: MachineModel) -> None:
    cores = min(machine.cores, 24)
    found, item = enumerate_tilings(shape, machine, cores), machine.element_bytes
    on = np.arange(1, cores + 1)
    peak = max(machine.vector_flops, machine.clock_ghz * machine.matrix_flops)
    assert (found.compute_ns * on >= shape.flops / peak * 0.999).all()
    assert (np.diff(found.need_bytes, axis=-1) >= 0).all()
    assert (np.diff(found.dram_bytes, axis=-1) <= 1e-9).all()
    assert (found.dram_bytes[..., 0] <= found.l3_bytes * (1 + 1e-9)).all()  # no more misses than accesses
    least = (shape.inputs + shape.weights + shape.second + shape.outputs) * item
    assert (found.l3_bytes >= least * 0.999).all()
    assert (found.dram_bytes[..., -1] >= shape.weights * item * 0.999).all()  # weights are cold
    assert (found.block_size > 0).all() and (found.parallelism > 0).all()


@settings(max_examples=20, deadline=None)
@given(shapes())
def test_more_cores_never_reduce_the_work(shape: LayerShape) -> None:
    found = enumerate_tilings(shape, PAPERS, 32)
    work = found.compute_ns * np.arange(1, 33)
    assert (work[:, 1:] >= work[:, :1] * (1 - 1e-9)).all()


def test_one_task_knows_nothing_of_more_cores() -> None:
    """By hand: whole 14x14 outputs, all channels, all of the reduction at once."""
    found = enumerate_tilings(CONV, PAPERS, 8)
    at = found.points.index({"rows": 196, "columns": 256, "depth": 2304, "order": "m"})
    assert (found.compute_ns[at] == found.compute_ns[at, 0]).all()
    weights, inputs, outputs = 2304 * 256 * 4 + 256 * 4, 14 * 14 * 256 * 4, 14 * 14 * 256 * 4
    assert found.block_size[at] == weights + inputs + outputs
    assert found.dram_bytes[at, 0, -1] == weights
    assert found.need_bytes[at, 0, -1] >= weights + inputs + outputs


def test_tasks_by_channels_read_the_weights_once_and_the_inputs_in_each_domain() -> None:
    """By hand: 16 tasks of 16 channels over all outputs, on 16 cores in 4 domains."""
    found = enumerate_tilings(CONV, PAPERS, 16)
    at = found.points.index({"rows": 196, "columns": 16, "depth": 2304, "order": "m"})
    weights, inputs = 2304 * 256 * 4 + 256 * 4, 14 * 14 * 256 * 4
    assert found.dram_bytes[at, 15, -1] == pytest.approx(weights)
    assert found.remote_bytes[at, 15] == pytest.approx(4 * inputs * 3 / 4)
    assert found.compute_ns[at, 15] == pytest.approx(found.compute_ns[at, 0] / 16)
    assert found.compute_ns[at, 14] == pytest.approx(found.compute_ns[at, 0] / 8)  # 16 tasks on 15 cores: two rounds


def test_tasks_by_rows_read_the_weights_in_each_domain() -> None:
    found = enumerate_tilings(CONV, PAPERS, 14)
    at = found.points.index({"rows": 14, "columns": 256, "depth": 2304, "order": "n"})
    weights = 2304 * 256 * 4 + 256 * 4
    assert found.dram_bytes[at, 13, -1] == pytest.approx(4 * weights)  # 14 cores in 4 domains


def test_cores_in_more_domains_than_they_fill_move_what_those_domains_read() -> None:
    shape = replace(load_model_shape("resnet50"), layers=(CONV,))
    work = model_profiles([shape], PAPERS, {"resnet50": 10**9}, versions=1)["resnet50"].work
    assert [sharing_cores(work, 4, domains, PAPERS) for domains in (1, 2, 4)] == [4, 8, 16]
    assert sharing_cores(work, 6, 2, PAPERS) == 6
    assert sharing_cores(work, 64, 16, PAPERS) == 64
    sharing = [sharing_cores(work, 4, domains, PAPERS) for domains in (1, 2, 4)]
    moved = [(work.remote_bytes[n - 1] + dram_bytes(work, n, n / 4 * PAPERS.l3_bytes)).item() for n in sharing]
    assert np.diff(moved)[1] == pytest.approx(2 * np.diff(moved)[0]) and moved[0] < moved[1]  # for each domain more


def test_matrix_tiles_are_filled_or_wasted() -> None:
    server = load_machine_model("xeon-6972p")
    full = replace(CONV, m=32 * 32, row=32, n=64, k=64, flops=2 * 32 * 32 * 64 * 64)
    odd = replace(full, n=33, flops=2 * 32 * 32 * 33 * 64)  # a third tile for one channel
    per_flop = [enumerate_tilings(s, server, 1).compute_ns[:, 0].min() / s.flops for s in (full, odd)]
    assert per_flop[1] / per_flop[0] == pytest.approx(48 / 33)


def test_a_stream_moves_everything_or_what_is_cold() -> None:
    pool = next(s for s in RESNET if s.op == "pool2d")
    found: TilingCandidates = enumerate_tilings(pool, PAPERS, 4)
    assert (found.dram_bytes[..., 0] == (pool.inputs + pool.outputs) * 4).all()
    assert (found.dram_bytes[..., -1] == 0).all()
