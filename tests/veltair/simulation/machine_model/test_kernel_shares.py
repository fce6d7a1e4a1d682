"""Measured shares of kernels: what a machine model makes of them, and that they are the shipped records'."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.paper import machine_model as writer
from veltair.errors import ConfigError
from veltair.simulation.machine_model.kernel_shares import load_kernel_table, slowest_of
from veltair.simulation.machine_model.layer_shapes import LayerShape, load_model_shape
from veltair.simulation.machine_model.machine_model import load_machine_model, parse_machine_model
from veltair.simulation.machine_model.roofline import layer_ns
from veltair.simulation.machine_model.tilings import enumerate_tilings

PAPERS = load_machine_model("threadripper-3990x")
TABLE = load_kernel_table("avx2")
CONV = next(s for s in load_model_shape("resnet50").layers if (s.m, s.n, s.k) == (196, 256, 2304))


def test_the_file_is_what_the_shipped_records_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(writer, "KERNELS", tmp_path)
    writer.write_kernels("avx2")
    shipped = Path(writer.ROOT, "veltair/simulation/machine_model/data/kernels/avx2.json")
    assert (tmp_path / "avx2.json").read_text("utf-8") == shipped.read_text("utf-8")


def test_a_layer_takes_what_was_measured() -> None:
    """On the machine of the records, on one core: the least recorded time of a direct kernel."""
    model = replace(load_machine_model("xeon-2"), **writer.RECORDED_ON["xeon-2"][1], matrix_flops=0, kernels="avx2")
    records = writer.best_runs(writer.recorded((writer.SHIPPED,), "avx2"))
    least = min(run_ns[0] for _, s, run_ns in records if (s.m, s.n, s.k) == (196, 256, 2304))
    found = enumerate_tilings(CONV, model, 1)
    assert found.compute_ns.min() == pytest.approx(least, rel=0.002)


def test_a_layer_that_was_not_measured_has_the_share_of_its_nearest() -> None:
    share = TABLE.share(CONV)
    assert share is not None and share != PAPERS.vector_efficiency
    assert TABLE.share(replace(CONV, n=257, outputs=196 * 257)) == share
    pool = LayerShape("p", "pool2d", 100, 1000, 0, 1000)
    assert TABLE.share(pool) is None
    by_shape = replace(PAPERS, kernels="avx2")
    one, other = (enumerate_tilings(pool, model, 1).compute_ns for model in (PAPERS, by_shape))
    assert (one == other).all()


def test_the_slowest_thread_takes_longer_than_the_mean() -> None:
    on = np.arange(1, 65)
    by_shape, table = (
        enumerate_tilings(CONV, model, 64).compute_ns for model in (PAPERS, replace(PAPERS, kernels="avx2"))
    )
    longer = (table / table[:, :1]) / (by_shape / by_shape[:, :1])
    assert (np.diff(longer, axis=1) >= -1e-9).all() and (longer[:, 0] == 1).all()
    draws = np.random.default_rng(1).normal(size=(200_000, 4)).max(axis=1).mean()
    assert slowest_of(4) == pytest.approx(draws, abs=0.03)
    assert longer[:, on == 4].max() == pytest.approx(1 + TABLE.imbalance * slowest_of(4))


def test_machine_files_name_their_kernels() -> None:
    text = "\n".join(
        f'{name} = "x"' if name in ("name", "title") else f'[{name}]\nvalue = 1\nsource = "x"'
        for name, field in PAPERS.__dataclass_fields__.items()
        if name not in ("kernels", "shared_links", "loaded_latency")
    )
    assert parse_machine_model(text, "x").kernels == ""
    more = 'kernels = "avx2"\nshared_links = true\n' + text
    model = parse_machine_model(more, "x")
    assert (model.kernels, model.shared_links, model.exposed_share) == ("avx2", True, 1.0)
    with pytest.raises(ConfigError, match="x: kernels: expected one of avx2, got 'sse'"):
        parse_machine_model(more.replace("avx2", "sse"), "x")
    with pytest.raises(ConfigError, match="expected avx2"):
        load_kernel_table("sse")


def test_what_does_not_overlap_is_added() -> None:
    from small_models import small_machine, small_model

    model = small_machine(16, core_gb_s=5.0)
    work = small_model(model, "cs").work
    whole, half = (
        layer_ns(work, 4, 1, 0.0, model.dram_gb_s, 1.0, replace(model, exposed_share=share)) for share in (0.0, 0.5)
    )
    moving = (work.dram_bytes[3, 0] + work.remote_bytes[3]) / 20.0
    computing = np.maximum(work.compute_ns[3], work.l3_bytes[3] / (4 * model.l3_gb_s))
    assert whole == pytest.approx(np.maximum(computing, moving) + 1000)
    assert half == pytest.approx(whole + 0.5 * np.minimum(computing, moving))
