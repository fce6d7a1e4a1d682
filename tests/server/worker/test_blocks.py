"""Blocks as one native call: what runs, where it stops, what it says meanwhile, and what its threads do after it."""

from __future__ import annotations

import gc
import os
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from driven_worker import Driven
from example_models import SPIN_LAYERS as LAYERS
from example_models import spin_state
from running_engine import WAIT_S

from veltair.machine.topology import usable_machine
from veltair.profiles.artifact.artifact_folder import load_artifact
from veltair.profiles.runtime.block_runner import Watch
from veltair.profiles.runtime.executor import Executor, ModelRun, aligned_copy, aligned_zeros
from veltair.profiles.runtime.pinned_threads import PinnedThreads
from veltair.server.ipc.messages import KernelFailed, ModelsLoaded

pytestmark = pytest.mark.slow

CORES = usable_machine().cores
MLP = (16, 32, 32, 8)  # build_artifacts.py
RNG = np.random.default_rng(3)


@pytest.fixture
def pool() -> Iterator[PinnedThreads]:
    """All cores; the thread that runs the tests is free to roam again afterwards."""
    before = os.sched_getaffinity(0)
    yield PinnedThreads(CORES)
    os.sched_setaffinity(0, before)


def load(artifacts: Path, name: str) -> Executor:
    return Executor(load_artifact(artifacts / name))


def chain(executor: Executor, turns: int, seed: int) -> tuple[ModelRun, np.ndarray]:
    """A run of the chain models, and the output that it will write."""
    inputs = [aligned_zeros((1,), "int32"), aligned_zeros((1,), "int32")]
    inputs[0][:], inputs[1][:] = turns, seed
    output = aligned_zeros((1,), "int32")
    return executor.bind(1, inputs, [output]), output


def run_all(executor: Executor, x: np.ndarray, version: int = 0) -> np.ndarray:
    output = aligned_zeros((len(x), MLP[-1]), "float32")
    executor.bind(len(x), [aligned_copy(x)], [output]).block(0, [version] * len(executor.manifest.layers))()
    return output


def mlp(artifacts: Path, x: np.ndarray) -> np.ndarray:
    flat, at = np.fromfile(artifacts / "mlp" / "weights.bin", np.float32), 0
    for rows, columns in pairwise(MLP):
        x = np.maximum(x @ flat[at : (at := at + rows * columns)].reshape(rows, columns), 0)
    return x


@pytest.mark.parametrize("count", range(1, len(CORES) + 1))
def test_any_cut_into_blocks_gives_what_the_model_gives(artifacts: Path, pool: PinnedThreads, count: int) -> None:
    executor = load(artifacts, "mlp")
    pool.move_to(CORES[-count:])
    for batch in (1, 3, 7, 8):
        x = RNG.standard_normal((batch, MLP[0]), np.float32)
        for cuts in ([0, 3], [0, 1, 3], [0, 2, 3], [0, 1, 2, 3]):
            output = aligned_zeros((batch, MLP[-1]), "float32")
            run = executor.bind(batch, [aligned_copy(x)], [output])
            for start, stop in pairwise(cuts):
                run.block(start, RNG.integers(0, 2, stop - start).tolist())()
            np.testing.assert_allclose(output, mlp(artifacts, x), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(run_all(executor, x, version=1), mlp(artifacts, x), rtol=1e-4, atol=1e-4)


def test_a_block_keeps_all_that_it_needs(artifacts: Path) -> None:
    executor = load(artifacts, "spin")
    run, output = chain(executor, 3, 5)
    block, gone = run.block(0, (0,) * LAYERS), weakref.ref(executor)
    del run, executor
    gc.collect()
    assert gone() is None
    block()
    assert output.tolist() == [spin_state(3, 5)]


@pytest.mark.parametrize(("start", "versions"), [(0, (0, 99)), (LAYERS - 1, (0, 0)), (LAYERS, (0,))])
def test_a_layer_or_version_that_does_not_exist_is_refused(
    artifacts: Path, start: int, versions: tuple[int, ...]
) -> None:
    run, _ = chain(load(artifacts, "spin"), 1, 5)
    with pytest.raises(IndexError):
        run.block(start, versions)


def test_a_block_stops_before_a_layer_when_its_word_changes_and_goes_on_from_there(artifacts: Path) -> None:
    run, output = chain(load(artifacts, "spin"), 3, 5)
    words = np.zeros(2, np.uint64)
    watch = Watch(words.ctypes.data, words.ctypes.data + 8)
    block = run.block(4, (0,) * (LAYERS - 4))
    assert block.run(4, watch, 1) == 4  # it held another value from the start
    assert words[1] == 0
    run.block(0, (0,) * 4)()
    written = run.buffer(3 + 9)  # what layer 9 writes: the word that is watched changes in the midst of the block
    written[...] = 0
    layer = block.run(4, Watch(written.ctypes.data, watch.progress), 0)
    assert (layer, words[1]) == (10, 9)
    assert block.run(layer, watch, 0) == LAYERS
    assert words[1] == LAYERS - 1
    assert output.tolist() == [spin_state(3, 5)]


@pytest.mark.parametrize("count", range(1, len(CORES) + 1))
def test_a_kernel_that_fails_in_any_thread_ends_its_block_with_its_own_words(
    artifacts: Path, pool: PinnedThreads, count: int
) -> None:
    executor = load(artifacts, "brittle")
    pool.move_to(CORES[:count])
    words = np.zeros(2, np.uint64)
    run, _ = chain(executor, 30, 5)
    for _ in range(3):
        with pytest.raises(Exception, match="too much for a brittle layer"):
            run.block(0, (0,) * LAYERS).run(0, Watch(words.ctypes.data, words.ctypes.data + 8), 0)
        assert words[1] == 30 - 15 - 5 + 1
    run, output = chain(executor, 0, 5)
    run.block(0, (0,) * LAYERS)()
    assert output.tolist() == [5 + LAYERS]


def test_a_worker_reports_the_failure_and_serves_the_next_query(artifacts: Path) -> None:
    worker = Driven(artifacts, name="brittle")
    try:
        assert isinstance(worker.next(), ModelsLoaded)
        worker.run(1, 30, CORES)
        broke = worker.next()
        assert isinstance(broke, KernelFailed)
        assert "too much for a brittle layer" in broke.reason
        assert worker.cell.progress == 11
        worker.run(2, 0, CORES)
        assert worker.end().stop == LAYERS
        assert worker.pool.outputs(0, 1, 1)[0].tolist() == [5 + LAYERS]
    finally:
        worker.close()


def test_two_threads_may_run_kernels_at_once(artifacts: Path, pool: PinnedThreads) -> None:
    executors = [load(artifacts, "mlp") for _ in range(2)]
    together = Barrier(2)

    def run(executor: Executor) -> None:
        x = np.random.default_rng(id(executor)).standard_normal((5, MLP[0]), np.float32)
        together.wait()
        for _ in range(200):
            np.testing.assert_allclose(run_all(executor, x), mlp(artifacts, x), rtol=1e-4, atol=1e-4)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(run, executors))


def pool_threads() -> list[Path]:
    tasks = Path("/proc/self/task").iterdir()
    return [task for task in tasks if (task / "comm").read_text().startswith("veltair-core")]


def test_its_threads_have_a_core_each_and_sleep_after_a_block(artifacts: Path, pool: PinnedThreads) -> None:
    threads = pool_threads()
    assert sorted(next(iter(os.sched_getaffinity(int(task.name)))) for task in threads) == list(CORES)
    assert all(len(os.sched_getaffinity(int(task.name))) == 1 for task in threads)
    run, _ = chain(load(artifacts, "brittle"), 0, 5)
    for _ in range(20):
        run.block(0, (0,) * LAYERS)()
        give_up = time.monotonic() + WAIT_S
        while any((task / "stat").read_text().split()[2] != "S" for task in threads):
            assert time.monotonic() < give_up, "they do not sleep"


def test_a_core_that_is_not_there_is_refused(pool: PinnedThreads) -> None:
    with pytest.raises(ValueError, match="core 1023"):
        PinnedThreads((1023,))
    with pytest.raises(ValueError, match="core 1000000"):
        PinnedThreads((1_000_000,))
