"""A real worker process, driven by hand: what it does between two layers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from driven_worker import CORES, Driven
from example_models import LONG_TURNS, SPIN_LAYERS, spin_state
from running_engine import readable

from veltair.server.ipc.messages import CoresChanged, KernelFailed, ModelsLoaded

pytestmark = pytest.mark.slow


@pytest.fixture
def worker(artifacts: Path) -> Iterator[Driven]:
    driven = Driven(artifacts)
    assert isinstance(driven.next(), ModelsLoaded)
    yield driven
    driven.close()


def test_a_query_runs_in_blocks_and_keeps_its_activations_between_them(worker: Driven) -> None:
    stops = [0, 1, 20, SPIN_LAYERS]
    for start, stop in pairwise(stops):
        worker.run(1, 3, CORES, start, (0,) * (stop - start))
        end = worker.end()
        assert (end.query, end.stop, end.reported) == (1, stop, False)
        assert end.begin_ns < end.end_ns
    assert worker.pool.outputs(0, 1, 1)[0].tolist() == [spin_state(3, 5)]


def test_it_stops_at_the_next_layer_when_its_query_is_cancelled_and_serves_the_next(worker: Driven) -> None:
    worker.run(1, LONG_TURNS, CORES)
    worker.reach(1)
    worker.cell.cancel(1)
    assert 1 < worker.end().stop < SPIN_LAYERS
    worker.run(2, 3, CORES)
    assert worker.end().stop == SPIN_LAYERS
    assert worker.pool.outputs(0, 1, 1)[0].tolist() == [spin_state(3, 5)]


def test_a_cancellation_of_another_query_is_none_of_its_business(worker: Driven) -> None:
    worker.run(2, 3, CORES)
    worker.cell.cancel(1)
    assert worker.end().stop == SPIN_LAYERS


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_it_takes_up_a_new_core_set_between_two_layers_and_reports_it(worker: Driven) -> None:
    worker.run(1, LONG_TURNS, CORES[1:2])
    worker.reach(1)
    assert worker.pinned()[0] == {CORES[1]}
    worker.cell.set_cores(CORES[:2])
    grown = worker.next()
    assert isinstance(grown, CoresChanged)
    assert (grown.query, grown.cores) == (1, CORES[:2])
    assert 1 < grown.layer < SPIN_LAYERS
    assert {core for affinity in worker.pinned() for core in affinity} >= set(CORES[:2])
    worker.cell.set_cores(CORES[:1])  # it may shrink as well
    shrunk = worker.next()
    assert isinstance(shrunk, CoresChanged)
    assert shrunk.cores == CORES[:1]
    assert worker.pinned()[0] == {CORES[0]}
    worker.cell.cancel(1)
    assert worker.end().reported


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_an_idle_worker_is_moved_before_it_is_woken_and_only_where_it_must(worker: Driven) -> None:
    for cores, core in ((CORES[1:2], 1), (CORES[:2], 1), (CORES[:1], 0), (CORES[:2], 0)):
        worker.process.pin_main_thread(cores)
        assert os.sched_getaffinity(worker.process.pid) == {CORES[core]}  # its first thread, which launches
        worker.run(1, 3, cores)
        assert not worker.end().reported
        assert worker.pinned()[0] == {CORES[core]}


def test_a_worker_that_is_gone_cannot_be_moved_and_need_not(worker: Driven) -> None:
    worker.process.kill()
    assert readable(worker.process.pidfd)
    worker.process.pin_main_thread(CORES[:1])


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_a_core_set_that_changed_before_the_block_began_is_reported_too(worker: Driven) -> None:
    os.kill(worker.process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, worker.process.pid, os.WSTOPPED)
    worker.run(1, 3, CORES[:1])
    worker.cell.set_cores(CORES[:2])
    os.kill(worker.process.pid, signal.SIGCONT)
    grown = worker.next()
    assert isinstance(grown, CoresChanged)
    assert (grown.layer, grown.cores) == (0, CORES[:2])
    assert worker.end().reported
    worker.run(2, 3, CORES[:2])
    assert not worker.end().reported


def test_what_a_kernel_raises_costs_the_block_and_not_the_worker(worker: Driven) -> None:
    worker.run(1, 3, CORES, versions=(0, 99))
    broke = worker.next()
    assert isinstance(broke, KernelFailed)
    assert broke.query == 1
    assert "IndexError" in broke.reason
    assert worker.cell.take_end() is None
    worker.run(2, 3, CORES)
    assert worker.end().query == 2


def test_the_same_order_again_runs_the_block_that_is_prepared_already(worker: Driven) -> None:
    for query in range(1, 6):
        worker.run(query, query, CORES)
        assert worker.end().query == query
        assert worker.pool.outputs(0, 1, 1)[0].tolist() == [spin_state(query, 5)]


def test_a_worker_killed_in_a_block_leaves_no_end_and_one_killed_after_it_does(worker: Driven) -> None:
    worker.run(1, 3, CORES)
    assert readable(worker.bell)
    worker.run(2, LONG_TURNS, CORES)
    worker.reach(1)
    worker.process.kill()
    assert readable(worker.process.pidfd)
    end = worker.cell.take_end()
    assert end is not None
    assert (end.query, end.stop) == (1, SPIN_LAYERS)
    assert worker.cell.take_end() is None


def test_it_leaves_when_its_socket_closes(worker: Driven) -> None:
    worker.process.channel.socket.shutdown(2)
    assert readable(worker.process.pidfd), "it does not leave"
    ended = os.waitid(os.P_PIDFD, worker.process.pidfd, os.WEXITED | os.WNOWAIT)
    assert ended is not None and (ended.si_code, ended.si_status) == (os.CLD_EXITED, 0)


def test_the_worker_has_the_runtime_alone_and_the_other_processes_no_tvm(worker: Driven) -> None:
    mapped = {Path(line.split()[-1]).name for line in Path(f"/proc/{worker.process.pid}/maps").read_text().splitlines()}
    assert "libtvm_runtime.so" in mapped
    assert "libtvm_compiler.so" not in mapped
    program = (
        "import sys, veltair.server.engine.engine, veltair.server.front.engine_client;"
        "sys.exit(any('tvm' in module for module in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
